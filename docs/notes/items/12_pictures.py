# Captions and pictures
import regard

# %% N76 trains
# Without attention, the decoder sees one vector of the picture once; it must hold all of it.
found = regard.compare(
    "squares/pairs.tsv",
    only="fixed-vector,bahdanau",
    updates=250,
    settings={"model.width": 48, "model.embedding": 24, "train.batch_tokens": 2048},
    quiet=True,
)
print(found.table())

# %% N77
# With attention, each word has a map of its own over the grid of features.
model = regard.load("squares/model")
result = model("squares/0.png")
print(result.text)
regard.draw(result, "n77.png", over="squares/0.png")

# %% N78
# Different words look at different parts: the centre of the map moves word by word.
result = regard.load("squares/model")("squares/0.png")
maps = result.attention().maps_TRC
columns = (maps.sum(1) / maps.sum((1, 2), keepdims=True)[:, 0]) @ range(maps.shape[2])
print([(word, round(float(column), 1)) for word, column in zip(result.tokens, columns, strict=False)])
