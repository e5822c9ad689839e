"""A DDP script of lockstep SGD, and the two lines that make gradients travel as one bit. Seconds.

torchrun --nproc-per-node 2 examples/ddp_onebit.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import undrift as ud
from undrift import ddp

# Without torchrun there is one process, which has nobody to send to.
alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("gloo", **({} if dist.is_torchelastic_launched() else alone))

digits = ud.data.digits()
train = TensorDataset(*digits.train)
sampler = DistributedSampler(train, drop_last=True)  # as many batches on every rank
loader = DataLoader(train, batch_size=32, sampler=sampler, drop_last=True)
torch.manual_seed(0)
model = DistributedDataParallel(ud.models.build("mlp", shape=(64,), classes=10))
state = ddp.MarsitState(server_lr=0.02)  # one bit: the first line
model.register_comm_hook(state, ddp.marsit_hook)  # one bit: the second line
optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(10):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimiser.step()

inputs, targets = digits.test
with torch.no_grad():
    accuracy = (model.module(inputs).argmax(1) == targets).float().mean().item()
size = sum(parameter.numel() for parameter in model.parameters())
bits = 8 * state.bytes_sent / (size * state.step)
if dist.get_rank() == 0:
    print(
        f"{dist.get_world_size()} processes: accuracy {accuracy:.3f} after {state.step} steps, "
        f"{bits:.3f} bits a coordinate and step sent by a process; float32 would take "
        f"{64 * (1 - 1 / dist.get_world_size()):.0f}"
    )
dist.destroy_process_group()
