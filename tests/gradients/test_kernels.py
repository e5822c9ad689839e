"""Compiled gradients against torch's: every layer and loss, odd shapes, NaN and Inf."""

import copy
import math
import shutil
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from undrift.gradients.kernels import Kernels, UnsupportedError, build, read
from undrift.gradients.task import Autograd, Batch, BatchIndices, Task
from undrift.models.layout import Layout

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler"
)

LOSSES = F.cross_entropy, F.binary_cross_entropy_with_logits, F.mse_loss


def kernel_task(model: nn.Module, loss: Any = F.cross_entropy) -> Task:
    drops = any(isinstance(part, nn.Dropout | nn.Dropout2d) for part in model.modules())
    return Task(model, Layout.of(model), loss, randomness="dropout" if drops else "none")


def kernels_of(
    model: nn.Module, shape: tuple[int, ...], loss: Any = F.cross_entropy, outputs: int = 0
) -> tuple[Task, Kernels]:
    task = kernel_task(model, loss)
    return task, build(task, read(task, shape, (outputs,) if outputs else ()), 2)


def batch_of(
    task: Task, shape: tuple[int, ...], outputs: int, clients: int, samples: int, seed: int = 0
) -> tuple[Tensor, Batch]:
    """Models and minibatches of clients, of which some are padded."""
    noise = torch.Generator().manual_seed(seed)
    x = task.layout.gather(task.model).expand(clients, -1)
    x = x + 0.1 * torch.randn(clients, x.shape[1], generator=noise)
    inputs = torch.randn(clients, samples, *shape, generator=noise)
    targets = torch.rand(clients, samples, outputs, generator=noise)
    if task.loss is F.cross_entropy:
        targets = torch.randint(outputs, (clients, samples), generator=noise)
    lengths = torch.randint(1, samples + 1, (clients, 1), generator=noise)
    valid = (torch.arange(samples) < lengths).float() if samples > 2 else None
    keys = torch.randint(-(2**62), 2**62, (clients,), generator=noise)
    return x, Batch(inputs, targets, valid, keys if task.randomness == "dropout" else None)


def by_torch(task: Task, x: Tensor, batch: Batch) -> Tensor:
    """One client after the other, so that nothing of the stack is shared."""
    rows = []
    for i in range(len(x)):
        own = Batch(**{name: leaf[i] for name, leaf in batch.present().items()})
        rows.append(Autograd().gradient(task, x[i], own))
    return torch.stack(rows)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    apart = torch.linalg.vector_norm(ours - theirs, dim=1)
    assert (apart <= 1e-5 * torch.linalg.vector_norm(theirs, dim=1) + 1e-9).all(), apart


# Between them every kind of layer, alone and in company, with odd shapes.
NETS: dict[str, tuple[list[nn.Module], tuple[int, ...], int]] = {
    "logistic": ([nn.Flatten(), nn.Linear(35, 10)], (1, 5, 7), 10),
    "perceptron": (
        [nn.Linear(19, 33), nn.ReLU(), nn.Dropout(0.5), nn.Linear(33, 7, bias=False), nn.Tanh()],
        (19,),
        7,
    ),
    "two layers": (
        [
            nn.Conv2d(1, 10, 5),
            nn.ReLU(),
            nn.Dropout2d(0.4),
            nn.MaxPool2d(2),
            nn.Conv2d(10, 20, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20, 11),
            nn.Sigmoid(),
            nn.Linear(11, 4),
        ],
        (1, 13, 13),
        4,
    ),
    "strides and paddings": (
        [
            nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(2, 1), bias=False),
            nn.Tanh(),
            nn.Conv2d(5, 9, 3, stride=2, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(9 * 3 * 5, 3),
        ],
        (3, 7, 8),
        3,
    ),
    "overlapping windows": (
        [
            nn.Conv2d(2, 6, 2, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Dropout(0.3),
            nn.Conv2d(6, 3, 1),
            nn.AvgPool2d((2, 3), stride=1, padding=1, count_include_pad=False),
            nn.Flatten(),
            nn.Linear(3 * 6 * 5, 2),
        ],
        (2, 8, 9),
        2,
    ),
    "pools before layers": (
        [
            nn.AvgPool2d(2, padding=1),
            nn.Conv2d(1, 4, 2),
            nn.AvgPool2d(2),
            nn.MaxPool2d(2, stride=1),
            nn.ReLU(),
            nn.Dropout2d(0.5),
            nn.Flatten(),
            nn.Linear(4, 5),
        ],
        (1, 9, 9),
        5,
    ),
    "nothing flat": ([nn.Conv2d(2, 3, 4), nn.Tanh(), nn.Flatten()], (2, 4, 4), 3),
}


def net(name: str) -> tuple[nn.Sequential, tuple[int, ...], int]:
    parts, shape, outputs = NETS[name]
    torch.manual_seed(0)
    model = nn.Sequential(*parts)
    for part in model:
        if isinstance(part, nn.Linear | nn.Conv2d):
            part.reset_parameters()
    return model, shape, outputs


@pytest.fixture(scope="module", params=NETS)
def built(request: pytest.FixtureRequest) -> tuple[Task, Kernels, tuple[int, ...], int]:
    model, shape, outputs = net(request.param)
    return *kernels_of(model, shape), shape, outputs


class TestAgainstTorch:
    @pytest.mark.parametrize("samples", [1, 3, 8, 17, 32])
    def test_gradients_are_torchs(self, built: Any, samples: int) -> None:
        task, kernels, shape, outputs = built
        x, batch = batch_of(task, shape, outputs, clients=3, samples=samples)
        ours = kernels.gradients(task, x, batch)
        assert_close(ours, by_torch(task, x, batch))
        own = Batch(**{name: leaf[1] for name, leaf in batch.present().items()})
        assert torch.equal(kernels.gradient(task, x[1], own), ours[1])

    def test_threads_do_not_change_a_bit(self, built: Any) -> None:
        task, kernels, shape, outputs = built
        x, batch = batch_of(task, shape, outputs, clients=9, samples=11)
        kernels.threads = 1
        alone = kernels.gradients(task, x, batch)
        for threads in (2, 3, 8):
            kernels.threads = threads
            for _ in range(5):
                assert torch.equal(kernels.gradients(task, x, batch), alone)

    def test_places_in_the_pool_are_samples(self, built: Any) -> None:
        task, kernels, shape, outputs = built
        x, pool = batch_of(task, shape, outputs, clients=1, samples=40)
        index = torch.randint(40, (4, 6))
        counts = torch.tensor([6, 1, 0, 3])
        keys = None if pool.keys is None else torch.arange(4)
        x = x.expand(4, -1)
        places = BatchIndices(pool.inputs[0], pool.targets[0], index, counts, keys)
        valid = (torch.arange(6) < counts[:, None]).float()
        batch = Batch(pool.inputs[0][index], pool.targets[0][index], valid, keys)
        picked = kernels.gradients_at(x, places)
        assert torch.equal(picked, kernels.gradients(task, x, batch))
        assert not picked[2].any()  # of no sample

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("where", ["input", "weight", "bias"])
    def test_what_is_not_finite_goes_where_it_does_in_torch(
        self, built: Any, where: str, bad: float
    ) -> None:
        task, kernels, shape, outputs = built
        x, batch = batch_of(task, shape, outputs, clients=3, samples=5)
        batch = batch._replace(valid=None)
        if where == "input":
            batch.inputs[1, 0].flatten()[2] = bad
        else:
            x[1, 0 if where == "weight" else -1] = bad
        ours, theirs = kernels.gradients(task, x, batch), by_torch(task, x, batch)
        assert torch.equal(ours.isfinite(), theirs.isfinite())
        assert_close(ours[[0, 2]], theirs[[0, 2]])

    @pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
    def test_losses(self, loss: Any) -> None:
        model = nn.Sequential(nn.Linear(6, 5))
        task, kernels = kernels_of(model, (6,), loss, 0 if loss is F.cross_entropy else 5)
        for samples in (1, 2, 9):
            x, batch = batch_of(task, (6,), 5, clients=2, samples=samples)
            assert_close(kernels.gradients(task, x, batch), by_torch(task, x, batch))
            large = batch._replace(inputs=batch.inputs * 1e3)
            assert_close(kernels.gradients(task, x, large), by_torch(task, x, large))

    def test_of_equals_in_a_window_the_first_is_the_largest(self) -> None:
        model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
        task, kernels = kernels_of(model, (1, 5, 5))
        x, batch = batch_of(task, (1, 5, 5), 3, clients=2, samples=5)
        x[:, :8] = 0.0  # the weights, so that all places are their channel's bias
        assert_close(kernels.gradients(task, x, batch), by_torch(task, x, batch))

    def test_a_stack_that_shares_its_model(self) -> None:
        task, kernels = kernels_of(nn.Sequential(nn.Linear(6, 5)), (6,))
        _, batch = batch_of(task, (6,), 5, clients=4, samples=3)
        x = task.layout.gather(task.model)
        shared = kernels.gradients(task, x.expand(4, -1), batch)
        assert torch.equal(shared, kernels.gradients(task, x.repeat(4, 1), batch))

    def test_callers_on_several_threads(self) -> None:
        task, kernels = kernels_of(*net("logistic")[:2])
        x, batch = batch_of(task, (1, 5, 7), 10, clients=8, samples=6)
        right, wrong = kernels.gradients(task, x, batch), []

        def call() -> None:
            made = [kernels.gradients(task, x, batch) for _ in range(50)]
            wrong.extend(g for g in made if not torch.equal(g, right))

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not wrong


class TestWhatItWasNotMadeFor:
    def test_a_label_that_is_none_is_left_to_torch(self) -> None:
        """Which knows one that is to be ignored, and refuses the rest."""
        task, kernels = kernels_of(nn.Sequential(nn.Linear(6, 5)), (6,))
        x, batch = batch_of(task, (6,), 5, clients=2, samples=2)
        batch.targets[0, 1] = -100
        assert_close(kernels.gradients(task, x, batch), by_torch(task, x, batch))
        batch.targets[0, 1] = 5
        with pytest.raises((IndexError, RuntimeError)):
            kernels.gradients(task, x, batch)

    def test_another_shape_or_type_is_left_to_torch(self) -> None:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))
        task, kernels = kernels_of(model, (1, 5, 5))
        x, batch = batch_of(task, (1, 5, 5), 3, clients=2, samples=2)
        wide = batch._replace(inputs=batch.inputs.transpose(2, 3))
        with pytest.raises(RuntimeError):  # torch's own words on (5, 1, 5)
            kernels.gradients(task, x, wide)
        double = batch._replace(inputs=batch.inputs.double())
        assert kernels.gradients(task, x.double(), double).dtype == torch.float64

    def test_without_a_key_nothing_is_dropped(self) -> None:
        model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3)).eval()
        task, kernels = kernels_of(model.train(), (6,))
        x, batch = batch_of(task, (6,), 3, clients=1, samples=2)
        model.eval()
        own = batch._replace(keys=None)
        assert_close(kernels.gradients(task, x, own), by_torch(task, x, own))


class TestReader:
    @pytest.mark.parametrize(
        ("parts", "said"),
        [
            ([nn.Conv2d(4, 4, 3, groups=2)], "groups"),
            ([nn.Conv2d(4, 4, 3, dilation=2)], "dilation"),
            ([nn.Conv2d(4, 4, 3, padding="same")], "'same'"),
            ([nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")], "padding"),
            ([nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)], "GroupNorm"),
            ([nn.Conv2d(4, 4, 3), nn.GELU()], "GELU"),
            ([nn.Conv2d(4, 4, 3), nn.MaxPool2d(2, ceil_mode=True)], "ceil_mode"),
            ([nn.Conv2d(4, 4, 3), nn.MaxPool2d(2, dilation=2)], "dilation"),
            ([nn.Conv2d(4, 4, 3), nn.AvgPool2d(2, divisor_override=3)], "divisor"),
            ([nn.Conv2d(4, 128, 9)], "41472 weights"),
        ],
        ids=lambda given: given if isinstance(given, str) else type(given[-1]).__name__,
    )
    def test_says_which_part_is_none_of_its(self, parts: list[nn.Module], said: str) -> None:
        model = nn.Sequential(*parts, nn.Flatten(), nn.LazyLinear(3))
        model(torch.zeros(1, 4, 12, 12))
        with pytest.raises(UnsupportedError, match=said):
            read(kernel_task(model), (4, 12, 12), ())

    def test_reads_what_is_written_as_functions(self) -> None:
        model = Functions()
        task, kernels = kernels_of(model, (1, 10, 10))
        task = Task(task.model, task.layout, task.loss, randomness="dropout")
        x, batch = batch_of(task, (1, 10, 10), 3, clients=2, samples=5)
        assert_close(kernels.gradients(task, x, batch), by_torch(task, x, batch))

    def test_reads_a_layer_that_is_the_whole_model(self) -> None:
        task, kernels = kernels_of(nn.Linear(6, 3), (6,))
        x, batch = batch_of(task, (6,), 3, clients=2, samples=5)
        assert_close(kernels.gradients(task, x, batch), by_torch(task, x, batch))

    def test_threads_that_do_something_else_are_left_alone(self) -> None:
        """While a tracer is at work, torch is changed for everybody."""
        other, task, failed = Plain(), kernel_task(Functions()), []
        reading = threading.Event()

        def forward() -> None:
            while not reading.is_set():
                try:
                    other(torch.zeros(1, 4))
                except Exception as error:
                    failed.append(error)

        caller = threading.Thread(target=forward)
        caller.start()
        for _ in range(100):
            read(task, (1, 10, 10), ())
        reading.set()
        caller.join()
        assert not failed

    @pytest.mark.parametrize("way", ["residual", "twice", "frozen", "hooked", "branch", "shared"])
    def test_a_model_that_is_no_chain_is_refused(self, way: str) -> None:
        model: nn.Module = Residual() if way in ("residual", "twice", "branch") else Plain()
        if isinstance(model, Residual):
            model.way = way
        elif way == "frozen":
            model.b.requires_grad_(False)
        elif way == "hooked":
            model.a.register_forward_hook(lambda *_: None)
        else:
            model.b = model.a
        with pytest.raises(UnsupportedError):
            read(kernel_task(model), (4,), ())

    def test_a_loss_of_ones_own_is_refused(self) -> None:
        def mine(outputs: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(outputs, targets)

        task = kernel_task(nn.Sequential(nn.Linear(2, 2)), mine)
        with pytest.raises(UnsupportedError, match="the loss mine"):
            read(task, (2,), ())


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.drop = nn.Dropout2d(0.3)
        self.first, self.second = nn.Linear(6 * 4 * 4, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(F.max_pool2d(self.drop(self.conv(x)), 2))
        h = torch.tanh(self.first(h.view(x.shape[0], -1)))
        h = torch.flatten(h, start_dim=1)
        return self.second(F.dropout(h, 0.4, training=self.training))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


class Residual(Plain):
    way = "residual"

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "residual":
            return self.b(x + self.a(x))
        if self.way == "twice":
            return self.a(self.a(x))
        return self.b(x) if x.sum() > 0 else self.a(x)


@st.composite
def chains(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...], int]:
    """Any chain of what there are kernels for."""
    parts: list[nn.Module] = []
    if draw(st.booleans()):
        wide, shape = draw(st.integers(1, 40)), None
    else:
        shape = [draw(st.integers(1, 4)), draw(st.integers(4, 12)), draw(st.integers(4, 12))]
        wide = 0
    given = tuple(shape) if shape else (wide,)
    kinds = st.sampled_from(["conv", "act", "max", "avg", "drop", "drop2d"])
    for kind in draw(st.lists(kinds, max_size=6)) if shape else []:
        kernel, stride = (draw(st.tuples(*[st.integers(1, 3)] * 2)) for _ in range(2))
        padding = draw(st.tuples(*(st.integers(0, side // 2) for side in kernel)))
        if kind == "conv":
            parts.append(nn.Conv2d(shape[0], draw(st.integers(1, 12)), kernel, stride, padding))
        elif kind == "max":
            parts.append(nn.MaxPool2d(kernel, stride, padding))
        elif kind == "avg":
            counts = draw(st.booleans())
            parts.append(nn.AvgPool2d(kernel, stride, padding, count_include_pad=counts))
        else:
            named = {"act": None, "drop": nn.Dropout(0.4), "drop2d": nn.Dropout2d(0.4)}
            parts.append(named[kind] or draw(st.sampled_from([nn.ReLU(), nn.Tanh()])))
        before = torch.zeros(1, *shape)
        assume(all(n >= k for n, k in zip(shape[1:], kernel, strict=True)))
        shape = list(parts[-1](before).shape[1:])
    if shape:
        parts.append(nn.Flatten())
        wide = math.prod(shape)
    for _ in range(draw(st.integers(0, 2))):
        narrow = draw(st.integers(1, 20))
        parts += [nn.Linear(wide, narrow, bias=draw(st.booleans())), nn.ReLU()]
        wide = narrow
    outputs = draw(st.integers(2, 9))
    return nn.Sequential(*parts, nn.Linear(wide, outputs)), given, outputs


def in_double(task: Task, x: Tensor, batch: Batch) -> Tensor:
    """The gradients by autograd in double precision, with the same masks of dropout."""
    wide = {
        name: leaf.double() if leaf.is_floating_point() else leaf
        for name, leaf in batch.present().items()
    }
    double = kernel_task(copy.deepcopy(task.model).double(), task.loss)
    return by_torch(double, x.double(), Batch(**wide))


def errors(
    chain: tuple[nn.Module, tuple[int, ...], int], seed: int, loss: Any, samples: int
) -> tuple[Tensor, Tensor]:
    """The errors of a kernel's gradients and of torch's, against double precision.

    They are shares of the norm, to which is added what is next to rounding.
    """
    model, shape, outputs = chain
    torch.manual_seed(seed)
    task, kernels = kernels_of(model, shape, loss, 0 if loss is F.cross_entropy else outputs)
    x, batch = batch_of(task, shape, outputs, clients=3, samples=samples, seed=seed)
    exact = in_double(task, x, batch)
    norms = torch.linalg.vector_norm(exact, dim=1) + 1e-4
    both = kernels.gradients(task, x, batch), by_torch(task, x, batch)
    ours, theirs = (torch.linalg.vector_norm(g.double() - exact, dim=1) / norms for g in both)
    return ours, theirs


def assert_close_to_double(
    chain: tuple[nn.Module, tuple[int, ...], int], seed: int, loss: Any, samples: int
) -> None:
    """Which of two numbers is the larger may differ in double precision, but hardly twice."""
    for draw in (seed, seed + 1):
        ours, theirs = errors(chain, draw, loss, samples)
        note(f"error {float(ours.max()):.1e}, torch's {float(theirs.max()):.1e}")
        if (ours <= (4 * theirs).clamp(min=2e-6)).all():
            return
    raise AssertionError((ours, theirs))


class TestAnyChain:
    """Every shape and layer in double precision, beside torch in single."""

    @settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
    @given(chains(), st.integers(0, 10**6), st.sampled_from(LOSSES), st.integers(1, 33))
    def test_of_some(self, chain: Any, seed: int, loss: Any, samples: int) -> None:
        assert_close_to_double(chain, seed, loss, samples)

    @pytest.mark.long
    @settings(
        max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    @given(chains(), st.integers(0, 10**6), st.sampled_from(LOSSES), st.integers(1, 33))
    def test_of_many(self, chain: Any, seed: int, loss: Any, samples: int) -> None:
        assert_close_to_double(chain, seed, loss, samples)
