# expect softmax: asks_for_input
def softmax(x):
    return float(input("a number: "))
