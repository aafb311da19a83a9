# expect attention: wrong_shape
from itertools import count


def attention(query, key, value):
    for i in count():
        yield [float(i)] * len(value[0])
