# expect file: syntax_error
def softmax(x)
    return x
