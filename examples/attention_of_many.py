"""The attention of many sentences at once: where each head looks.

A small Transformer is trained on sentences of a toy French, in which adjectives follow their nouns.
"""

import itertools

import regard

ARTICLES = {"the": "le", "a": "un", "this": "ce"}
NOUNS = {"cat": "chat", "dog": "chien", "boat": "bateau", "garden": "jardin", "hat": "chapeau"}
ADJECTIVES = {"red": "rouge", "black": "noir", "white": "blanc", "slow": "lent"}


def translated(article: str, adjective: str, noun: str) -> str:
    return " ".join((ARTICLES[article], NOUNS[noun], ADJECTIVES[adjective]))


pairs = [(" ".join(words), translated(*words)) for words in itertools.product(ARTICLES, ADJECTIVES, NOUNS)]
settings = {"data.source_unit": "words", "data.target_unit": "words", "model.width": 32, "model.heads": 2}
model = regard.train(pairs, settings=settings, kind="transformer", steps=150, learning_rate=0.01, quiet=True)

results = model.batch([source for source, _ in pairs], beam=3, n_best=2)
for layer in (0, 1):
    for head in (0, 1):
        maps = model.attention(results, "cross", layer, head)  # computed in batches, in the order of the results
        print(f"layer {layer}, head {head}: how often each step attends most to each position, in {len(maps)} sentences")
        for step in range(4):
            keys = [int(one.weights_HTS[0, step].argmax()) for one in maps if step < len(one.target)]
            print(f"  token {step}:", " ".join(f"{keys.count(key):4}" for key in range(4)))

attention = results[0].attention(alternative=1)  # of the second-best output
print(attention.target, "attends to", attention.source)
for one in model.attention(["the red cat", "this slow boat"]):  # texts are translated first
    print(one.target, one.mean_TS.argmax(-1))
