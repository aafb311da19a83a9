# Transformer blocks
import torch

import regard

# %% N67
# Six encoder layers, six decoder layers, each of which attends to the last encoder layer; 8 heads, 512, 2048: parameters
# without embeddings.
print(f"{regard.describe('base', num_tokens=4).parameters - 2 * 4 * 512 - 4:,}")

# %% N68
# The whole drawing, with shapes and parameters, before anything is trained.
regard.describe("base", num_tokens=37_000).draw("n68.svg")

# %% N69
# The feed-forward net works on each position apart; 4×4 goes in, 4×4 comes out and is the input of the next block.
stack, x = regard.TransformerEncoder(4, 2, layers=3, norm_order="post").eval(), torch.randn(1, 4, 4)
states = [x]
for layer in stack.layers:
    states.append(layer(states[-1]))
print([tuple(state.shape) for state in states], torch.allclose(stack(x), states[-1], atol=1e-6))

# %% N70
# Input + f(input) keeps gradients alive: their norm at the input of each layer of twelve, with and without the skip.
some = [("cab", "C A B"), ("ad", "A D"), ("face", "F A C E")]
sizes = {"width": 32, "heads": 2, "feed_forward": 64, "encoder_layers": 12, "decoder_layers": 1, "dropout": 0.0}
norms = {
    f"{order}-norm{'' if residual else ', no skip'}": regard.gradient_by_layer(
        regard.build(
            "transformer",
            some,
            residual=residual,
            norm="none" if order == "no" else "layer",
            norm_order="post" if order == "post" else "pre",
            **sizes,
        ),
        some,
    )["encoder"]
    for order in ("pre", "post", "no")
    for residual in (True, False)
}
regard.draw(norms, "n70.svg", scale="log", x="layer", y="‖∂ loss / ∂ x‖")

# %% N71
# Layers stack: one layer's output is the next one's input. Parameters of one to six layers.
print(
    [
        regard.describe(regard.build("transformer", num_tokens=9, width=8, heads=2, encoder_layers=number)).parameters
        for number in range(1, 7)
    ]
)

# %% N72
# Keys and values of cross-attention come from the encoder, queries from below: another source changes the weights of cross-
# attention, not those of self-attention in the first decoder layer.
model = regard.build("transformer", num_tokens=9, width=16, heads=2, decoder_layers=1).eval()
look, seen = regard.Look((regard.Tap("decoder"), regard.Tap("cross"))), []
for ids in ([4, 5, 6], [7, 8, 4]):
    memory = model.encode(regard.Source(torch.tensor([ids]), torch.ones(1, 3, dtype=torch.bool)))
    seen.append(model.decode(torch.tensor([[2, 4, 5, 6]]), memory, look).seen)
for one, other in zip(*seen, strict=True):
    print(one.kind, tuple(one.weights_BHTS.shape), "unchanged:", torch.equal(one.weights_BHTS, other.weights_BHTS))

# %% N73 trains
# The list of tricks: what each is worth, left out in turn, with one task and one budget.
found = regard.compare("reverse.tsv", without="all", updates=300, settings={"model.heads": 2}, quiet=True)
print(found.table())
