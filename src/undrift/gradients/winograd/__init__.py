"""3x3 convolutions of many channels by Winograd's algorithm, in C++ behind torch's autograd.

`library` compiles the headers with the builder of the other kernels, `convolution` is the operation
with its backward pass, `oracle` puts it in the place of torch's while a gradient is taken.
"""

from undrift.gradients.winograd.oracle import (
    Survey,
    Winograd,
    build_winograd,
    has_wide_convolutions,
    survey,
)

__all__ = ["Survey", "Winograd", "build_winograd", "has_wide_convolutions", "survey"]
