"""What most papers' code does: a deep copy of the net and a DataLoader for every client."""

from __future__ import annotations

import copy
import random

import torch
from benchmarks.speed import nets
from benchmarks.speed.protocol import Line, Options
from benchmarks.speed.workloads import WORKLOADS, Workload, read
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def train(net: nn.Module, data: TensorDataset, workload: Workload) -> tuple[int, int]:
    """Train locally, and return steps and samples."""
    optimizer = torch.optim.SGD(net.parameters(), lr=workload.lr)
    steps = samples = 0
    while steps < workload.steps:
        for inputs, targets in DataLoader(data, batch_size=workload.batch, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(targets)
            if steps == workload.steps:
                break
    return steps, samples


def one_round(
    server: nn.Module, clients: list[TensorDataset], workload: Workload
) -> tuple[int, int]:
    """Run a round, and return the steps and samples of all clients."""
    states, done = [], []
    for client in random.sample(clients, workload.cohort):
        net = copy.deepcopy(server)
        done.append(train(net, client, workload))
        states.append(net.state_dict())
    mean = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
    server.load_state_dict(mean)
    steps, samples = map(sum, zip(*done, strict=True))
    return steps, samples


def main() -> None:
    options, line = Options.parse(), Line()
    torch.set_num_threads(options.threads or 1)
    workload, data = WORKLOADS[options.workload], read(options.data)
    clients = [
        TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))
        for inputs, targets in zip(data.inputs, data.targets, strict=True)
    ]
    server = nets.build(workload)
    while line.next(lambda: nets.accuracy(server, data)):
        done = [one_round(server, clients, workload) for _ in range(workload.rounds)]
        line.worked(*map(sum, zip(*done, strict=True)))


if __name__ == "__main__":
    main()
