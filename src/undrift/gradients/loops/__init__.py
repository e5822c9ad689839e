"""Local loops in compiled code: a client's minibatches are one call instead of one call a step.

`traced` has values that record what a step does with them, `trace` calls a step with them, `emit`
writes the C++ of the loop around a kernel, `run` compiles and calls it. See docs/kernels.md.
"""

from undrift.gradients.loops.run import CompiledLoops, LoopArguments, StepSamples, most_steps
from undrift.gradients.loops.trace import Program

__all__ = ["CompiledLoops", "LoopArguments", "Program", "StepSamples", "most_steps"]
