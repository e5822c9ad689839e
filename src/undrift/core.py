"""The contract between algorithms and engines, and nothing else.

An algorithm is a frozen dataclass of hyper-parameters with pure methods, written for one client on
one flat vector. It receives an oracle instead of a gradient and a loop instead of a loader, and
never sees a client axis, a device, a process group or a message. All state is NamedTuples of
tensors (or a bare tensor, or `()` for none) that go in and come out; nothing hides in `self`.
Every server and node state has a field `x`: the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

from numpy.random import Generator
from torch import Tensor, nn

Vector = Tensor  # flat parameters, (D,)

S = TypeVar("S")  # server state
B = TypeVar("B")  # broadcast
C = TypeVar("C")  # client state
U = TypeVar("U")  # upload
N = TypeVar("N")  # node state of a peer
T = TypeVar("T")

Draw = Callable[[str, Tensor], Tensor]  # keyed uniforms in [0, 1) with the shape of the tensor


class Outputs(NamedTuple):
    """What the model says about the current minibatch, before the loss."""

    logits: Tensor
    features: Tensor  # what enters the model's classifier
    loss: Tensor  # on this minibatch, a scalar


class Objective(Protocol):
    """F_i on one minibatch; every call at one step sees the same samples and dropout masks."""

    @property
    def t(self) -> int: ...  # round, from 0
    @property
    def k(self) -> int: ...  # step within this pass of the loop, from 0
    @property
    def level(self) -> Tensor: ...  # (D,) index of the model's block each coordinate belongs to
    def __call__(self, x: Vector) -> Tensor: ...
    def grad(self, x: Vector) -> Vector: ...
    def outputs(self, x: Vector) -> Outputs: ...
    def plus(self, term: Callable[[Vector], Tensor]) -> Objective:
        """F_i + term, where term gives one value per sample (averaged like F_i) or a scalar."""
        ...


class Loop(Protocol):
    """This client's K_i local minibatches: `y = steps(step, x)`; calling again gives the next K_i.

    Under the stacked engine `count` differs between clients, so it is a tensor and may be used in
    arithmetic and in `torch.where`, never in an `if`.
    """

    @property
    def t(self) -> int: ...
    @property
    def count(self) -> Tensor: ...  # K_i, a float scalar
    @property
    def mean_count(self) -> float: ...  # sum_i w_i K_i over the cohort
    @property
    def full(self) -> Objective: ...  # the whole local data
    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T: ...
    def draw(self, purpose: str, like: Tensor) -> Tensor:
        """Uniforms keyed by (seed, purpose, round, client): the same purpose, the same draws."""
        ...


@dataclass(frozen=True)
class Cohort:
    """Who took part in a round."""

    t: int
    population: int  # N
    size: int  # |S_t|
    mass: float  # sum of the population weights of S_t; |S_t| / N when uniform


class Federated(ABC, Generic[S, B, C, U]):
    """A method with a server, cut at the wire: broadcast / local / update."""

    @property
    def starts_at_broadcast(self) -> bool:
        """Whether clients start their local steps at the model the server sends."""
        return True

    def check(self, model: nn.Module) -> None:
        """Refuse a model that lacks what the method asks of it, before any work."""

    @abstractmethod
    def init(self, x0: Vector) -> S: ...

    @abstractmethod
    def init_client(self, x0: Vector, down: B) -> C:
        """State of a client at its first round."""

    @abstractmethod
    def broadcast(self, server: S) -> B: ...

    @abstractmethod
    def local(self, down: B, client: C, steps: Loop) -> tuple[U, C]:
        """One client's round. Every leaf of the upload is an increment, never an absolute."""

    @abstractmethod
    def update(self, server: S, mean: U, cohort: Cohort) -> S:
        """Sees only the weighted mean of the uploads."""

    def enrol(self, server: S, share: float) -> S:
        """Newcomers with zero duals enlarge the population; the old one keeps this share of it.

        A server that holds a mean of duals over all clients multiplies it by `share`.
        """
        return server

    def pack(self, up: U, client: C, steps: Loop) -> tuple[Any, C]:
        """The wire format of an upload, as tensors; bytes are counted on what this returns."""
        return up, client

    def unpack(self, wire: Any) -> U:
        return wire  # type: ignore[no-any-return]


class Prelude(Federated[S, B, C, U]):
    """A method with one more exchange before the broadcast, over the same cohort."""

    @abstractmethod
    def ask(self, server: S) -> Any: ...

    @abstractmethod
    def answer(self, down: Any, client: C, steps: Loop) -> tuple[Any, C]: ...

    @abstractmethod
    def hear(self, server: S, mean: Any, cohort: Cohort) -> S: ...


class Merge(ABC):
    """An all-reduce calls a merge to combine the workers' vectors hop by hop.

    A worker keeps its share of the sum in whatever form suits the merge; what travels is bytes, and
    a receiver learns nothing but those bytes. `count` is the number of workers that a share stands
    for, `like` a tensor with the shape and dtype of the coordinates in question. Every call gets a
    generator of its own, keyed by the worker, the place in the vector and the counts.
    """

    lossy: bool = True  # whether the result may differ from the mean
    # The operation by which a backend's own all-reduce can stand in for this merge, if one can.
    backend: ClassVar[Literal["mean", "max"] | None] = None

    @property
    def draws(self) -> frozenset[str]:
        """Return the operations that draw random numbers; the others do not use their generator.

        "start" and "send" are the methods of these names, "merge" is `prepare` (and `merge`, which
        gets what `prepare` returned), "close" is `encode_result`. The names are part of the keys of
        the random numbers, so that they stay although two methods have other names.
        """
        return frozenset({"start", "send", "merge", "close"})

    @abstractmethod
    def start(self, v: Vector, rng: Generator) -> Any:
        """Return a worker's own share, made from its piece `v` of the vector."""

    @abstractmethod
    def send(self, share: Any, count: int, rng: Generator) -> Tensor:
        """Return the bytes (uint8) of a share, for the next worker."""

    @abstractmethod
    def receive(self, data: Tensor, count: int, like: Vector) -> Any:
        """Return the share whose bytes `send` returned."""

    def prepare(self, a: int, n: Any, b: int, rng: Generator) -> Any:
        """Return what merging a share of `a` workers into `n`, a share of `b` workers, needs.

        It is called while the share of `a` workers is still on its way.
        """
        return rng

    @abstractmethod
    def merge(self, m: Any, a: int, n: Any, b: int, prepared: Any) -> Any:
        """Return the share that combines `m`, received for `a` workers, with `n`, held for `b`.

        `prepared` is what `prepare` returned.
        """

    def encode_result(self, share: Any, count: int, rng: Generator) -> Tensor:
        """Return the bytes (uint8) of the result, which are copied to every worker."""
        return self.send(share, count, rng)

    @abstractmethod
    def decode_result(self, data: Tensor, count: int, like: Vector) -> Vector:
        """Return the result whose bytes `encode_result` returned."""

    def decode_result_into(self, out: Vector, data: Tensor, count: int) -> None:
        """Write the result into `out`; a merge overrides this where it can spare the copy."""
        out.copy_(self.decode_result(data, count, out))

    def nbytes(self, like: Vector, count: int, *, result: bool) -> int | None:
        """Return the length of what `send` returns, or `encode_result` if `result`.

        None says that the length depends on the values.
        """
        return None


class Comm(Protocol):
    """What one peer can ask of the others; all of them ask the same, in the same order."""

    @property
    def size(self) -> int: ...
    def mix(self, tree: T) -> T: ...  # sum_j W_ij v_j over the neighbours j and i itself
    def reduce(self, v: Vector, how: Merge) -> Vector: ...  # the route is the engine's choice


class Peer(ABC, Generic[N]):
    """A method without a server: the paper's "worker m" box is the program."""

    @property
    def every_step(self) -> bool:
        """Whether it communicates at every local step, not once a round."""
        return False

    @property
    def meetings(self) -> int:
        """In how many of a round's first steps nodes meet; no K_i may end before, unless all do."""
        return 1

    def check(self, model: nn.Module) -> None:
        """Refuse a model that lacks what the method asks of it, before any work."""

    @abstractmethod
    def init(self, x0: Vector, f: Objective) -> N: ...

    @abstractmethod
    def round(self, node: N, steps: Loop, comm: Comm) -> N: ...


class Gossip(Peer[N]):
    """A peer method that mixes with its neighbours; it needs a topology."""


class AllReduce(Peer[N]):
    """A peer method that reduces over all workers; it needs a route."""
