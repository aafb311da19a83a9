# expect softmax: crashed
import sys

sys.setrecursionlimit(10**9)

class Nested:
    def __repr__(self):
        return repr([self])

def softmax(x):
    return repr(Nested())
