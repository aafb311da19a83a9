# expect softmax: not_written
def softmax(x):
    raise NotImplementedError
