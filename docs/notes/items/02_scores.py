# Score functions
import torch

import regard

# %% N10
# Five scores of the table (dot, scaled dot, general, concat, location) and the second spelling of concat: weights of one
# query on four keys.
sizes = {"query_width": 8, "key_width": 8, "width": 8, "max_source": 4}
query, keys = torch.randn(1, 8), torch.randn(4, 8)
for name in ("dot", "scaled_dot", "general", "concat", "additive", "location"):
    score = regard.scores.make_score(name, **sizes)
    print(
        f"{name:11} parameters: {sum(p.numel() for p in score.parameters()) if isinstance(score, torch.nn.Module) else 0:4}",
        *regard.attention_weights(query, keys, score=score)[0].round(decimals=2).tolist(),
    )

# %% N11
# The dot product presumes states of one width; general and additive take two.
try:
    regard.attention_weights(torch.randn(1, 4), torch.randn(3, 6), score=regard.scores.Dot())
except ValueError as error:
    print(error)
print(
    *(
        tuple(regard.attention_weights(torch.randn(1, 4), torch.randn(3, 6), score=score).shape)
        for score in (regard.scores.General(4, 6), regard.scores.Additive(4, 6, 5))
    )
)


# %% N12
# Bahdanau's and Luong's scores on the same states, and a similarity of one's own: attentions differ in nothing but the
# similarity.
class Manhattan(regard.Score):
    name = "manhattan"

    def scores(self, query, prepared):
        return -(query.unsqueeze(-2) - prepared.unsqueeze(-3)).abs().sum(-1)


query, keys = torch.randn(1, 4), torch.randn(3, 4)
for score in (regard.scores.Additive(4, 4, 8), regard.scores.General(4, 4), Manhattan()):
    print(f"{score.name:10}", *regard.attention_weights(query, keys, score=score)[0].round(decimals=3).tolist())
print(regard.train("reverse.tsv", scores={"manhattan": Manhattan}, kind="rnn", width=16, steps=2, quiet=True).settings.score)

# %% N13
# kᵀq/d is no distance: it agrees with one only if all keys have the same norm.
query, keys = torch.randn(1, 8), torch.nn.functional.normalize(torch.randn(3, 8), dim=-1)
for some in (keys, keys * torch.tensor([[1.0], [2.0], [4.0]])):
    print(
        *(
            regard.attention_weights(query, some, score=score)[0].round(decimals=4).tolist()
            for score in (regard.scores.ScaledDot(divide_by="d"), regard.scores.Distance())
        )
    )

# %% N14
# The dot product feels lengths, the cosine does not: one key grows, and its weight with it.
query, keys, factors = torch.ones(1, 4), torch.rand(5, 4), (0.5, 1, 2, 4)
weight = {
    score.name: [
        regard.attention_weights(query, torch.cat((factor * keys[:1], keys[1:])), score=score)[0, 0] for factor in factors
    ]
    for score in (regard.scores.Dot(), regard.scores.Cosine(1.0))
}
regard.draw(
    {name: torch.stack(curve) for name, curve in weight.items()},
    "n14.svg",
    rows=factors,
    x="factor of the length of one key",
    y="its weight",
    scale=(0, 1),
)

# %% N15 trains
# The same model with another similarity is another mechanism: one command, one budget, one table.
found = regard.compare(
    "reverse.tsv",
    only="luong-dot,luong-general,luong-cosine,luong-location",
    updates=150,
    settings={"model.width": 32},
    quiet=True,
)
print(found.table())

# %% N16
# A query attracts the keys with q·k > 0 (blue) and repels those with q·k < 0 (red).
regard.draw(([1.0, 0.6], torch.randn(7, 2)), "n16.svg", kind="arrows")
