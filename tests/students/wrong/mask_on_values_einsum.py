# expect attention: mask_values
import numpy as np


def attention(q, k, v, mask=None):
    energy = np.einsum("id,jd->ij", q, k) / np.sqrt(q.shape[-1])
    alpha = np.exp(energy - energy.max(-1, keepdims=True))
    alpha = alpha / alpha.sum(-1, keepdims=True)
    if mask is not None:
        v = np.where(mask.all(0)[:, None], v, 0)
    return np.einsum("ij,jc->ic", alpha, v)
