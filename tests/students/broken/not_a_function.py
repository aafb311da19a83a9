# expect file: no_function
import numpy as np

scores = np.zeros((3, 3))
