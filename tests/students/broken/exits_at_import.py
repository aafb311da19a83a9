# expect file: ends_process
def softmax(x):
    return x

exit(0)
