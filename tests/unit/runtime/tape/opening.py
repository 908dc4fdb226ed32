"""Where the window stands, and what is on the tape."""

import torch


def depth():
    return torch._C._len_torch_function_stack()


def names(capture):
    return [entry.name for entry in capture.tape.whole()]
