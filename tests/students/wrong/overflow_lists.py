# expect softmax: overflow
import math

def softmax(row):
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]
