# expect softmax: endless_recursion
def softmax(x):
    return softmax(x)
