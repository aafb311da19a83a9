"""Translate marked text: the tags of the source follow their words into the translation.

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

marked = 'this <a href="/boats?slow=1&amp;sail=2"><i>black</i> boat</a> seems <b>slow</b>'
text = regard.markup.plain(marked)  # what the model reads
result = model(text)
print(marked)
print(regard.transfer_markup(marked, result))

# With a translation and links of your own, no model is needed:
print(regard.markup.transfer("Tom &amp; <b>Jerry</b>", "Jerry & Tom", [(0, 2), (1, 1), (2, 0)]))
