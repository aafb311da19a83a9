# expect scaled_dot_scores: scale_multiplied
import numpy as np

def scaled_dot_scores(query, key):
    return np.einsum("id,jd->ij", query, key) * np.sqrt(query.shape[-1])
