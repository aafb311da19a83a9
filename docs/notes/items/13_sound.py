# Sound and cross-modal attention
import torch

import regard

# %% N79
# V_audio/text = Attention(Q_audio, K_text, V_text): frames of sound ask, words answer.
frames, words = torch.randn(50, 16), torch.randn(7, 16)
print(tuple(regard.attend(frames, words, words).shape))
regard.draw(regard.attention_weights(frames, words).T, "n79.svg", x="frame", y="word", numbers=False)

# %% N80
# The sources need neither be in step nor of one length, and the order of the words is of no matter.
frames, words = torch.randn(50, 16), torch.randn(7, 16)
shuffled = words[torch.randperm(7)]
print(torch.allclose(regard.attend(frames, words, words), regard.attend(frames, shuffled, shuffled), atol=1e-6))

# %% N81
# One decoder for texts, pictures, sounds and videos: only the encoder's frontend differs.
for frontend, size in {"tokens": 9, "picture": 3, "sound": 1, "frames": 40, "video": 3}.items():
    model = regard.build("rnn", num_tokens=(size, 9), frontend=frontend, width=16, decoder="bahdanau")
    print(f"{frontend:8} {regard.describe(model).parameters:,} parameters")
