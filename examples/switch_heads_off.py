"""What is a head good for? Switch it off, force it, cut a link or remove a source token, and translate again.

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


def share_right(*edits: regard.Edit) -> float:
    """Returns the share of sentences that are translated right with these edits."""
    results = model.batch([source for source, _ in pairs], edits=edits, max_length=8)
    return sum(result.text == target for result, (_, target) in zip(results, pairs, strict=True)) / len(pairs)


print(f"as it is: {share_right():.0%}")
for layer, head in itertools.product((0, 1), (0, 1)):
    print(f"cross-attention, layer {layer}, head {head} off: {share_right(regard.Edit.off('cross', layer, head)):.0%}")
print(f"all cross-attention off: {share_right(regard.Edit.off('cross')):.0%}")

text = "the red cat"  # positions 0 to 2; position 3 is <eos>
print(f"{text} -> {model(text).text}")
for what, edit in {
    "token 1 is written while attending to 'red' only": regard.Edit.force(query=1, key=1),
    "the step that writes token 1 may not attend to 'cat'": regard.Edit.cut(query=1, key=2),
    "nothing attends to 'cat'": regard.Edit.remove(2),
}.items():
    result = model(text, edits=edit, max_length=8)
    (scored,) = model.score([text], [translated("the", "red", "cat")], edits=edit)
    print(f"{what}: {result.text}; the right translation has log-probability {scored.log_prob:.2f}")

result = model(text, look=regard.Look(taps=(regard.Tap("cross", layer=-1),)))
for seen in result.seen:  # captured while the text was written; the output does not change
    print(seen.kind, "layer", seen.layer, "weights", seen.weights_BHTS.shape)
