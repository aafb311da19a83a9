import torch
from torch import Tensor, nn

from regard.core import masks
from regard.layers.blocks import TransformerDecoderLayer, TransformerEncoderLayer
from regard.models.decoder import WholeSelfAttention


def test_an_encoder_with_a_look_ahead_mask_is_a_decoder_without_cross_attention() -> None:  # SPEC A0.6
    """Both are GPT: with the same weights they give equal logits, and so does torch's encoder with the same mask."""
    vocab, width = 19, 12
    embedding, output = nn.Embedding(vocab, width).double(), nn.Linear(width, vocab).double()
    encoder = [TransformerEncoderLayer(width, 3, feed_forward=29, dropout=0.0).double() for _ in range(2)]
    decoder = [TransformerDecoderLayer(width, 3, cross=False, feed_forward=29, dropout=0.0).double() for _ in range(2)]
    for left, right in zip(encoder, decoder, strict=True):
        right.load_state_dict(left.state_dict())
    ids = torch.randint(vocab, (2, 7))

    def encoder_stack(ids: Tensor) -> Tensor:
        x = embedding(ids)
        for layer in encoder:
            x = layer(x, allow=masks.causal(7))
        return output(x)

    def decoder_stack(ids: Tensor) -> Tensor:
        x, causal = embedding(ids), WholeSelfAttention(masks.causal(7), causal=True)
        for number, layer in enumerate(decoder):
            x = layer(x, self_attend=lambda attention, y, number=number: causal(number, None, attention, y))
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
