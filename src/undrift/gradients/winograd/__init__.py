"""3x3 convolutions of many channels by Winograd's algorithm, in C++ behind torch's autograd.

`library` compiles the headers with the builder of the other kernels, `convolution` is the operation
with its backward pass, `oracle` puts it in the place of torch's while a gradient is taken.
"""

from undrift.gradients.winograd.oracle import Winograd, build

__all__ = ["Winograd", "build"]
