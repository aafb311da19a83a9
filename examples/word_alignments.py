"""Which word comes from which: the word alignment of a translation, read from attention.

A small model is trained on sentences of a toy French, in which adjectives follow their nouns.
"""

import itertools

import regard

ARTICLES = {"the": "le", "a": "un", "this": "ce"}
NOUNS = {"cat": "chat", "dog": "chien", "boat": "bateau", "garden": "jardin", "hat": "chapeau"}
ADJECTIVES = {"red": "rouge", "black": "noir", "white": "blanc", "slow": "lent"}
VERBS = {"is": "est", "seems": "semble", "stays": "reste"}


def translated(article: str, adjective: str, noun: str, verb: str, other: str) -> str:
    return " ".join((ARTICLES[article], NOUNS[noun], ADJECTIVES[adjective], VERBS[verb], ADJECTIVES[other]))


sentences = itertools.product(ARTICLES, ADJECTIVES, NOUNS, VERBS, ADJECTIVES)
pairs = [(" ".join(words), translated(*words)) for words in sentences]
model = regard.train(pairs, kind="rnn", width=64, steps=150, learning_rate=0.01, quiet=True)

result = model("this black boat seems slow")
source, target = str(result.source).split(), result.text.split()
print(f"{result.source} -> {result.text}")
for i, j in result.alignment():  # words of the source and of the target, counted from 0
    print(f"{i}-{j}  {source[i]} -> {target[j]}")

print("tokens instead of words:", result.alignment(pieces=True))
