# expect attention: returns_none
import numpy as np

def attention(query, key, value):
    output = query @ key.T @ value
