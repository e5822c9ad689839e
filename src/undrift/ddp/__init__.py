"""Communication hooks for lockstep SGD under DistributedDataParallel: gradients travel as signs.

    model = DistributedDataParallel(net)
    state = ddp.MarsitState(server_lr=1e-3, period=100)
    model.register_comm_hook(state, ddp.marsit_hook)

A hook turns the gradients g_m of all ranks into the one gradient that every rank's SGD sees. With
momentum or Adam, `undrift.Outer` synchronises their updates instead (docs/outer.md).
Buffers and randomness belong to parameters: DDP cuts its buckets anew after the first step of every
process, so whatever belonged to a bucket, or to a place in one, would not survive a resume. For the
same reason sums are made parameter by parameter: the order in which floats are added must not
depend on what else travels.
"""

from undrift.ddp.hooks import (
    EFSignState,
    MarsitState,
    SignState,
    SSDMState,
    ef_sign_hook,
    marsit_hook,
    sign_majority_hook,
    ssdm_hook,
)
from undrift.ddp.state import HookState

__all__ = [
    "EFSignState",
    "HookState",
    "MarsitState",
    "SSDMState",
    "SignState",
    "ef_sign_hook",
    "marsit_hook",
    "sign_majority_hook",
    "ssdm_hook",
]
