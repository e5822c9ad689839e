"""A script under torchrun that saves at every meeting: FOLDER METHOD [RANK PLACE].

Rank RANK kills itself in the first attempt, after three meetings: in the middle of the next round
(PLACE "step"), or while it saves the third one, when its file is written but not yet in its place
(PLACE "save"). Rank 0 prints the hash of its model.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import undrift as ud
from undrift.outer import checkpoints

METHODS = {
    "DiLoCo": ud.Compressed(ud.DiLoCo(lr=1.0), ud.ScaledSign(), error_feedback=True),
    "Marsit": ud.Marsit(lr=1.0, server_lr=0.01),
}


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


torch.set_num_threads(1)
folder, method = Path(sys.argv[1]), METHODS[sys.argv[2]]
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
place = sys.argv[4] if attempt == 0 and sys.argv[3:4] == [str(rank)] else ""
torch.manual_seed(attempt)  # so that nothing but the checkpoint can make attempts agree
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
if attempt == 0:
    torch.manual_seed(5)
    for p in model.parameters():
        nn.init.normal_(p, 0, 0.1)
torch.manual_seed(rank)
inner = torch.optim.Adam(model.parameters(), lr=0.01)
outer = ud.Outer(model, method, every=3, inner=inner, timeout=60.0)
scheduler = torch.optim.lr_scheduler.ExponentialLR(outer, 0.95)
extra = outer.resume(folder)
if extra is not None:
    scheduler.load_state_dict(extra["scheduler"])
while outer.t < 6:
    draw = torch.Generator().manual_seed(1000 * rank + outer.steps)  # a loader keyed by the step
    inputs = torch.randn(8, 6, generator=draw)
    outer.zero_grad()
    model(inputs).square().mean().backward()
    met = outer.t
    if place == "step" and outer.steps == 10:
        kill()
    outer.step()
    scheduler.step()
    if outer.t > met:
        if place == "save" and outer.t == 3:
            checkpoints.seal_file = kill
        outer.save(folder, scheduler=scheduler.state_dict())
if rank == 0:
    x = nn.utils.parameters_to_vector(model.parameters()).detach()
    print("hash", hashlib.sha256(x.numpy().tobytes()).hexdigest(), "attempt", attempt, flush=True)
