"""Flower's simulation: `run_simulation` with Ray, one actor a core.

It is deprecated in favour of the command `flwr run`, but it is what runs within one process tree.
The strategy waits for its turn when it is asked to begin a round. Ray's daemons and Flower's
polling go on meanwhile; the runner measures what that costs the others.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from benchmarks.speed.protocol import Line, Options
from benchmarks.speed.workloads import WORKLOADS, Data, read

ENDLESS = 10**6
OPTIONS = "UNDRIFT_SPEED_OPTIONS"  # in the environment, which the actors inherit
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Stop(Exception):
    """Says that the runner wants no more rounds."""


@lru_cache
def held(path: str) -> Data:
    """Return the data, which each actor reads once."""
    return read(path)


@lru_cache
def net_of(name: str) -> Any:
    """Return the net, which each actor makes once."""
    from benchmarks.speed import nets

    return nets.build(WORKLOADS[name])


def client_app() -> Any:
    import torch
    from benchmarks.speed import nets
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from torch.nn import functional as F

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        options = Options.parse(os.environ[OPTIONS].split("\n"))
        torch.set_num_threads(options.threads or 1)
        workload, data = WORKLOADS[options.workload], held(options.data)
        client = int(context.node_config["partition-id"])
        net = net_of(options.workload)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=workload.lr)
        own = torch.from_numpy(data.inputs[client]), torch.from_numpy(data.targets[client])
        steps = samples = 0
        for inputs, targets in nets.batches(*own, workload.batch, workload.steps):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(targets)
        counts = {"num-examples": len(own[1]), "steps": steps, "samples": samples}
        record = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(counts)}
        return Message(content=RecordDict(record), reply_to=message)

    return app


def server_app(options: Options, line: Line) -> Any:
    from benchmarks.speed import nets
    from flwr.app import ArrayRecord, Context, MetricRecord
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    workload = WORKLOADS[options.workload]

    class Turns(FedAvg):
        def configure_train(self, server_round: int, arrays: Any, *rest: Any) -> Iterable[Any]:
            def accuracy() -> float | None:
                net = nets.build(workload)
                net.load_state_dict(arrays.to_torch_state_dict())
                return nets.accuracy(net, held(options.data))

            if not line.next(accuracy):
                raise Stop
            return super().configure_train(server_round, arrays, *rest)

    def added(replies: list[Any], weighted_by: str) -> MetricRecord:
        found = [next(iter(reply.metric_records.values())) for reply in replies]
        steps, samples = (sum(int(one[key]) for one in found) for key in ("steps", "samples"))
        line.worked(steps, samples)
        return MetricRecord({"steps": steps, "samples": samples})

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Turns(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
            train_metrics_aggr_fn=added,
        )
        initial = ArrayRecord(nets.build(workload).state_dict())
        try:
            strategy.start(grid=grid, initial_arrays=initial, num_rounds=ENDLESS)
        except Stop:
            return

    return app


def main() -> None:
    options = Options.parse()
    line = Line()
    os.environ |= QUIET | {OPTIONS: "\n".join(options.arguments())}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        os.environ["FLWR_HOME"] = home
        # By its name and not as __main__, so that actors keep the data they have read.
        from benchmarks.speed.contestants import flower
        from flwr.simulation import run_simulation

        run_simulation(
            server_app=server_app(options, line),
            client_app=flower.client_app(),
            num_supernodes=WORKLOADS[options.workload].clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {
                    "num_cpus": options.processes,
                    "include_dashboard": False,
                    "_temp_dir": home,
                },
            },
        )


if __name__ == "__main__":
    main()
