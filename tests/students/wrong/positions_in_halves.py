# expect positions: halves
import numpy as np

def positions(length, width):
    k = np.arange(width // 2)
    angle = np.arange(length)[:, None] / 10000 ** (2 * k / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
