# expect softmax: ends_process
import sys

def softmax(x):
    sys.exit("I am done")
