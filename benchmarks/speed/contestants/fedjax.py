"""FedJAX's federated averaging with its jit backend, nets in haiku, images channels last.

Its other backend, pmap, calls functions that jax 0.10 no longer has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from benchmarks.speed.protocol import Line, Options
from benchmarks.speed.workloads import CLASSES, WORKLOADS, Data, Workload, read


def forward(workload: Workload) -> Callable[[Any], Any]:
    import haiku as hk
    import jax

    def norm(hidden: Any) -> Any:
        return hk.GroupNorm(2)(hidden)

    def block(hidden: Any, channels: int, stride: int) -> Any:
        def conv(inputs: Any, side: int, step: int) -> Any:
            return hk.Conv2D(channels, side, step, with_bias=False)(inputs)

        made = norm(conv(jax.nn.relu(norm(conv(hidden, 3, stride))), 3, 1))
        if stride > 1 or hidden.shape[-1] != channels:
            hidden = norm(conv(hidden, 1, stride))
        return jax.nn.relu(made + hidden)

    def resnet18(images: Any) -> Any:
        stem = workload.stem
        first = hk.Conv2D(64, stem, 2 if stem == 7 else 1, with_bias=False)
        hidden = jax.nn.relu(norm(first(images)))
        if stem == 7:
            hidden = hk.MaxPool(3, 2, "SAME", channel_axis=-1)(hidden)
        for channels in (64, 128, 256, 512):
            hidden = block(hidden, channels, 1 if channels == 64 else 2)
            hidden = block(hidden, channels, 1)
        return hk.Linear(CLASSES)(hidden.mean((1, 2)))

    def cnn2(images: Any) -> Any:
        hidden = images
        for channels in (10, 20):
            hidden = jax.nn.relu(hk.Conv2D(channels, 5, padding="VALID")(hidden))
            hidden = hk.MaxPool(2, 2, "VALID", channel_axis=-1)(hidden)
        hidden = jax.nn.relu(hk.Linear(50)(hk.Flatten()(hidden)))
        return hk.Linear(CLASSES)(hidden)

    def logistic(images: Any) -> Any:
        return hk.Linear(CLASSES)(hk.Flatten()(images))

    return {"cnn2": cnn2, "logistic": logistic, "resnet18-gn": resnet18}[workload.net]


def play(line: Line, workload: Workload, data: Data) -> None:
    import jax

    jax.tree_map = jax.tree_util.tree_map  # which fedjax 0.0.17 still calls by this name
    import fedjax
    import haiku as hk
    import jax.numpy as jnp

    counts = [0, 0]

    class Counted(fedjax.ClientDataset):
        def shuffle_repeat_batch(self, *hparams: Any, **more: Any) -> Iterator[Any]:
            for batch in super().shuffle_repeat_batch(*hparams, **more):
                counts[0] += 1
                counts[1] += len(batch["y"])
                yield batch

    def last(images: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(images, -3, -1))

    clients = [
        Counted({"x": inputs, "y": targets.astype(np.int32)})
        for inputs, targets in zip(last(data.inputs), data.targets, strict=True)
    ]
    net = hk.without_apply_rng(hk.transform(forward(workload)))
    apply = jax.jit(net.apply)

    def loss(params: Any, batch: Any, rng: Any) -> Any:
        scores = jax.nn.log_softmax(net.apply(params, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()

    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(workload.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch, num_epochs=None, num_steps=workload.steps
        ),
    )
    key, first = jax.random.split(jax.random.PRNGKey(0))
    state = algorithm.init(net.init(first, last(data.inputs[0, :1])))
    rng = np.random.default_rng(0)

    def accuracy() -> float | None:
        if len(data.test_targets) == 0:
            return None
        outputs = apply(state.params, last(data.test_inputs))
        return float((np.asarray(outputs).argmax(1) == data.test_targets).mean())

    while line.next(accuracy):
        counts[:] = 0, 0
        chosen = rng.choice(len(clients), workload.cohort, replace=False)
        key, *keys = jax.random.split(key, len(chosen) + 1)
        cohort = [(i, clients[i], own) for i, own in zip(chosen, keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        line.worked(*counts)


def main() -> None:
    options, line = Options.parse(), Line()
    play(line, WORKLOADS[options.workload], read(options.data))


if __name__ == "__main__":
    main()
