# expect softmax: crashed
import os

def softmax(x):
    os._exit(3)
