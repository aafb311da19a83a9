"""The native part: kernels in C++, compiled at installation, called through ctypes. Without them torch computes the same.

`library` loads them and needs no torch. Whatever gives their results to autograd is a file of its own.
"""
