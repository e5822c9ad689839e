"""This package computes gradients: the task that clients share has objectives and several oracles.

`task.py` has the loss and the `Oracle` protocol with torch's own gradients, `mlp.py` writes those
of chains of linear layers out, `compiled.py` uses torch.compile, `kernels/` compiles C++ for small
nets, and `winograd/` replaces the wide convolutions of others.
"""
