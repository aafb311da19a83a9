# expect softmax: out_of_memory
def softmax(x):
    blocks = []
    while True:
        blocks.append(bytearray(50_000_000))
