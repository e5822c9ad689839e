"""Gradients of small nets at the speed of the hardware, by C++ that is written for the model.

`reader` reads a model as a chain of layers, `emitter` writes the C++ of its gradient with the parts
in the headers, `builder` compiles and keeps the library, `oracle` calls it. `forward` does the same
for losses alone. See docs/kernels.md.
"""

from undrift.gradients.kernels.forward import ForwardKernel, build_forward, check_forward
from undrift.gradients.kernels.layers import UnsupportedError
from undrift.gradients.kernels.oracle import Kernels, build, measure
from undrift.gradients.kernels.reader import read

__all__ = [
    "ForwardKernel",
    "Kernels",
    "UnsupportedError",
    "build",
    "build_forward",
    "check_forward",
    "measure",
    "read",
]
