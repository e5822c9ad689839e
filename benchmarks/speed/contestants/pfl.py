"""pfl-research, on one process or several (gloo between them, as its own launcher does).

Its user data sets are cut into batches once and not reshuffled, which is its quickest way. Its
number of steps ends with the first epoch: where steps are no whole epochs, the data begin anew.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.speed.protocol import Line, Options
from benchmarks.speed.workloads import WORKLOADS, Data, Workload, read

ENDLESS = 10**6


def play(line: Any, workload: Workload, data: Data, threads: int) -> None:
    import numpy as np
    import torch
    from benchmarks.speed import nets
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics, StringMetricName, Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch import Tensor, nn

    torch.set_num_threads(threads)
    np.random.seed(0)  # the same users are drawn on every process
    steps_name, samples_name = StringMetricName("steps"), StringMetricName("samples")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nets.build(workload)
            self.steps = self.samples = 0

        def forward(self, inputs: Tensor) -> Tensor:
            return self.net(inputs)

        def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
            self.steps, self.samples = self.steps + 1, self.samples + len(targets)
            return nn.functional.cross_entropy(self.net(inputs), targets)

        def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
            return {}  # pfl always evaluates around the first round; let that cost nothing

    class Counted(FederatedAveraging):
        """The algorithm of pfl, which also counts steps and samples."""

        def train_one_user(self, *arguments: Any) -> Any:
            net.steps = net.samples = 0
            statistics, metrics = super().train_one_user(*arguments)
            counts = [(steps_name, net.steps), (samples_name, net.samples)]
            counted = Metrics([(name, Weighted(count, 1)) for name, count in counts])
            return statistics, metrics | counted

    class Turns(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Metrics:
            line.next()  # "stop" before the first round ends after it
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            counts = [aggregate_metrics[name] for name in (steps_name, samples_name)]
            line.worked(*(round(count.weighted_value) for count in counts))
            return not line.next(lambda: nets.accuracy(net, data)), Metrics()

    class Repeated(PyTorchTensorDataset):
        def iter(self, batch_size: int | None) -> Iterator[Any]:
            again = itertools.cycle(list(super().iter(batch_size)))
            return itertools.islice(again, workload.steps)

    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    kind = PyTorchTensorDataset if workload.epochs else Repeated
    users = [
        kind((torch.from_numpy(inputs), torch.from_numpy(targets)), user_id=str(i))
        for i, (inputs, targets) in enumerate(zip(data.inputs, data.targets, strict=True))
    ]
    sampler = get_user_sampler("minimize_reuse", list(range(len(users))))
    dataset = FederatedDataset(users.__getitem__, sampler)
    Counted().run(
        NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=ENDLESS,
            train_cohort_size=workload.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset),
        model,
        NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.lr,
            local_batch_size=workload.batch,
            local_num_steps=None if workload.epochs else workload.steps,
        ),
        callbacks=[Turns()],
        send_metrics_to_platform=False,
    )


class Follower:
    """Stands for the line in other processes: the first sends one byte for each round."""

    def worked(self, steps: int, samples: int) -> None: ...

    def next(self, accuracy: Any = None) -> bool:
        return sys.stdin.buffer.raw.read(1) == b"r"  # type: ignore[attr-defined]


class Leader:
    """The line of the first process, which also starts every round of the others."""

    def __init__(self, followers: list[subprocess.Popen[bytes]]) -> None:
        self._line, self._followers = Line(), followers
        self.worked = self._line.worked

    def next(self, accuracy: Any = lambda: None) -> bool:
        going_on = self._line.next(accuracy)
        for follower in self._followers:
            assert follower.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                follower.stdin.write(b"r" if going_on else b"s")
                follower.stdin.flush()
        return going_on


def start_followers(options: Options) -> list[subprocess.Popen[bytes]]:
    """Start the other processes, and set the environment by which pfl finds them."""
    if options.processes == 1:
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = ",".join([f"127.0.0.1:{port}"] * options.processes)
    os.environ |= {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": "0"}
    command = [sys.executable, "-m", "benchmarks.speed.contestants.pfl", *options.arguments()]
    return [
        subprocess.Popen(
            command, env=os.environ | {"PFL_WORKER_RANK": str(rank)}, stdin=subprocess.PIPE
        )
        for rank in range(1, options.processes)
    ]


def main() -> None:
    options = Options.parse()
    workload = WORKLOADS[options.workload]
    follows = os.environ.get("PFL_WORKER_RANK", "0") != "0"
    followers = [] if follows else start_followers(options)
    line = Follower() if follows else Leader(followers)
    play(line, workload, read(options.data), options.threads or 1)
    for follower in followers:
        follower.wait()


if __name__ == "__main__":
    main()
