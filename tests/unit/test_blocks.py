from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.core import masks
from regard.layers.attention import MultiHeadAttention
from regard.layers.blocks import DecoderLayer, EncoderLayer, ResidualConnection, feed_forward
from regard.models.decoder import CausalSelfAttention


def parts(width: int, order: str = "pre") -> tuple[MultiHeadAttention, nn.Module, Callable[[], ResidualConnection]]:
    return (
        MultiHeadAttention(width, 3),
        feed_forward(width, 29, 0.0),
        lambda: ResidualConnection(nn.LayerNorm(width), 0.0, order),
    )


def test_an_encoder_with_a_look_ahead_mask_is_a_decoder_without_cross_attention() -> None:  # SPEC A0.6
    """Both are GPT: with the same weights they give equal logits, and so does torch's encoder with the same mask."""
    vocab, width = 19, 12
    embedding, output = nn.Embedding(vocab, width).double(), nn.Linear(width, vocab).double()
    encoder = [EncoderLayer(*parts(width)).double() for _ in range(2)]
    decoder = [DecoderLayer(attention, None, *rest).double() for attention, *rest in (parts(width) for _ in range(2))]
    for left, right in zip(encoder, decoder, strict=True):
        right.load_state_dict(left.state_dict())
    ids = torch.randint(vocab, (2, 7))

    def encoder_stack(ids: Tensor) -> Tensor:
        x = embedding(ids)
        for layer in encoder:
            x, _ = layer(x, masks.causal(7), None, None)
        return output(x)

    def decoder_stack(ids: Tensor) -> Tensor:
        x, causal = embedding(ids), CausalSelfAttention(masks.causal(7), exact=True)
        for number, layer in enumerate(decoder):
            x, seen = layer(x, lambda attention, y, number=number: causal(number, None, attention, y), None, None, None)
            assert seen == ()
        return output(x)

    theirs = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 3, 29, 0.0, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
    ).double()
    with torch.no_grad():
        for mine, other in zip(encoder, theirs.layers, strict=True):
            linears = (mine.attention.query, mine.attention.key, mine.attention.value)
            other.self_attn.in_proj_weight.copy_(torch.cat([linear.weight for linear in linears]))
            other.self_attn.in_proj_bias.copy_(torch.cat([linear.bias for linear in linears]))
            other.self_attn.out_proj.load_state_dict(mine.attention.output.state_dict())
            other.linear1.load_state_dict(mine.feed_forward[0].state_dict())
            other.linear2.load_state_dict(mine.feed_forward[3].state_dict())
            other.norm1.load_state_dict(mine.around_attention.norm.state_dict())
            other.norm2.load_state_dict(mine.around_feed_forward.norm.state_dict())
    left, right = encoder_stack(ids), decoder_stack(ids)
    torch.testing.assert_close(left, right)
    torch.testing.assert_close(left, output(theirs(embedding(ids), mask=~masks.causal(7))))
    later = ids.clone()
    later[:, 4:] = (later[:, 4:] + 1) % vocab
    torch.testing.assert_close(decoder_stack(later)[:, :4], right[:, :4])
    assert not torch.allclose(decoder_stack(later)[:, 4:], right[:, 4:])
