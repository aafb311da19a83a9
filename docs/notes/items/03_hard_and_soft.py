# Hard and soft
import torch

import regard

# %% N17
# Soft attention shares, hard attention says yes or no: the same scores, three types of attention.
query, keys = torch.randn(4, 8), torch.randn(6, 8)
regard.draw(
    {kind: regard.attention_weights(query, keys, attention=kind) for kind in ("soft", "hard", "gated")}, "n17.svg", scale=(0, 1)
)

# %% N18 trains
# Hard attention is hard to train: without its policy gradient it does not learn where to look.
found = regard.compare(
    "copy.tsv",
    only="luong-additive,hard,hard-without-gradient,marginal",
    updates=500,
    settings={"model.width": 48, "train.learning_rate": 0.01, "train.batch_tokens": 512},
    quiet=True,
)
print(found.table())

# %% N19
# Weights are from 0 to 1 and sum to 1; each is the share of its value in the output: the finite difference is the weight.
query, key, value = torch.randn(1, 8), torch.randn(4, 8), torch.zeros(4, 1)
print(*regard.attention_weights(query, key)[0].round(decimals=4).tolist())
print(
    *(
        round((regard.attend(query, key, value + torch.eye(4)[:, j : j + 1]) - regard.attend(query, key, value)).item(), 4)
        for j in range(4)
    )
)

# %% N20
# A filter that slides over a sequence or a picture is hard attention by position: 1 under the filter, 0 elsewhere.
window = regard.masks.grid_window(5, 6, width=1).view(30, 5, 6)
regard.draw({f"cell {cell}": window[cell] for cell in (0, 14, 23)}, "n20.svg")

# %% N21 trains
# Attention keeps what matters: asked for one key among several ("a3f7k1?f" gives 7), the weight is on its pair.
model = regard.train(
    "recall.tsv",
    kind="rnn",
    attention="marginal",
    readout="plain",
    score="cosine",
    bridge="none",
    width=64,
    steps=300,
    batch_tokens=1024,
    learning_rate=0.01,
    source_unit="characters",
    target_unit="characters",
    dropout=0.0,
    quiet=True,
)
regard.draw(model("a3f7k1b5?f").attention().weights_HTS[0], "n21.svg", columns=[*"a3f7k1b5?f", "<eos>"], rows=["7", "<eos>"])
