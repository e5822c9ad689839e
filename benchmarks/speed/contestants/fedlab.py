"""FedLab's standalone pipeline: its serial trainer and its synchronous server.

Its data sets give out loaders; theirs here gathers batches by index, which is quicker than a
DataLoader. The pipeline waits for its turn where it would evaluate.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.speed import nets
from benchmarks.speed.protocol import Line, Options
from benchmarks.speed.workloads import WORKLOADS, Data, Workload, read
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor

ENDLESS = 10**6


class Loaders:
    """A FedLab data set that counts the samples taken from it."""

    def __init__(self, workload: Workload, data: Data) -> None:
        self._inputs, self._targets = map(torch.from_numpy, data[:2])
        self._in_an_epoch = workload.steps // epochs(workload)
        self.steps = self.samples = 0

    def get_dataloader(self, client: int, batch: int) -> Loader:
        return Loader(self, self._inputs[client], self._targets[client], batch)

    def epoch(self, inputs: Tensor, targets: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for pair in nets.batches(inputs, targets, batch, self._in_an_epoch):
            self.steps, self.samples = self.steps + 1, self.samples + len(pair[1])
            yield pair


class Loader:
    def __init__(self, whole: Loaders, inputs: Tensor, targets: Tensor, batch: int) -> None:
        self._whole, self._own = whole, (inputs, targets, batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._whole.epoch(*self._own)


def epochs(workload: Workload) -> int:
    """Return the epochs of the workload, or one epoch that holds all of its steps."""
    return workload.epochs or 1


class Pipeline(StandalonePipeline):
    def __init__(
        self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer, line: Line, data: Data
    ) -> None:
        super().__init__(handler, trainer)
        self._line, self._data = line, data

    def wait(self) -> None:
        """Wait for the next round, or let the pipeline end."""
        loaders = self.trainer.dataset
        loaders.steps = loaders.samples = 0
        if not self._line.next(lambda: nets.accuracy(self.handler.model, self._data)):
            self.handler.global_round = 0

    def evaluate(self) -> None:
        self._line.worked(self.trainer.dataset.steps, self.trainer.dataset.samples)
        self.wait()


def main() -> None:
    options, line = Options.parse(), Line()
    torch.set_num_threads(options.threads or 1)
    workload, data = WORKLOADS[options.workload], read(options.data)
    handler = SyncServerHandler(
        nets.build(workload), ENDLESS, workload.cohort / workload.clients, cuda=False
    )
    trainer = SGDSerialClientTrainer(nets.build(workload), workload.clients, cuda=False)
    trainer.setup_dataset(Loaders(workload, data))
    trainer.setup_optim(epochs(workload), workload.batch, workload.lr)
    pipeline = Pipeline(handler, trainer, line, data)
    pipeline.wait()
    pipeline.main()


if __name__ == "__main__":
    main()
