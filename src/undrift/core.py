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

from undrift import tree

Vector = Tensor  # flat parameters, (D,)
# Why methods with duals need the mean, for `Federated.needs_mean`.
DUALS_NEED_MEAN = (
    "clients keep duals whose weighted mean the server follows, and another rule would part the two"
)

S = TypeVar("S")  # server state
B = TypeVar("B")  # broadcast
C = TypeVar("C")  # client state
U = TypeVar("U")  # upload
N = TypeVar("N")  # node state of a peer
T = TypeVar("T")

Draw = Callable[[str, Tensor], Tensor]  # keyed uniforms in [0, 1) with the shape of the tensor


class Outputs(NamedTuple):
    """Holds what the model computes for the current minibatch."""

    logits: Tensor
    features: Tensor  # input of the model's classifier
    loss: Tensor  # mean over this minibatch, a scalar


class Objective(Protocol):
    """Evaluates F_i on one minibatch; every call sees the same samples and dropout masks."""

    @property
    def t(self) -> int:
        """Return the round, counted from 0."""

    @property
    def k(self) -> int:
        """Return the step within this pass of the loop, counted from 0."""

    @property
    def level(self) -> Tensor:
        """Return for each coordinate, as integers of shape (D,), the index of its model block."""

    def __call__(self, x: Vector) -> Tensor:
        """Return F_i(x), a scalar that can be differentiated."""

    def grad(self, x: Vector) -> Vector:
        """Return the gradient of F_i at x, weight decay and clipping included."""

    def grad_and_data_grad(self, x: Vector) -> tuple[Vector, Vector]:
        """Return `grad(x)` and the same without weight decay and clipping, for one gradient."""

    def outputs(self, x: Vector) -> Outputs:
        """Return logits, features and loss of the model with parameters x."""

    def plus(self, term: Callable[[Vector], Tensor]) -> Objective:
        """Return F_i + term, where term gives a scalar or one value per sample to be averaged."""


class Loop(Protocol):
    """Runs this client's K_i local minibatches: `y = steps(step, x)`.

    Calling it again runs the next K_i. Under the stacked engine `count` differs between clients, so
    it is a tensor and may be used in arithmetic and in `torch.where`, never in an `if`.
    """

    @property
    def t(self) -> int:
        """Return the round, counted from 0."""

    @property
    def count(self) -> Tensor:
        """Return K_i as a scalar of floating point."""

    @property
    def mean_count(self) -> float:
        """Return sum_i w_i K_i over the cohort."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return how many coordinates each of the model's tensors has, in their order."""

    @property
    def full(self) -> Objective:
        """Return the objective on all local data instead of a minibatch."""

    def __call__(self, step: Callable[[T, Objective], T], init: T) -> T:
        """Return the carry after K_i calls of `step`, the first of which receives `init`.

        `step` maps a carry (tensors) and the objective of one minibatch to the next carry.
        """

    def draw(self, purpose: str, like: Tensor) -> Tensor:
        """Return uniforms in [0, 1), shaped as `like`, keyed by seed, purpose, round and client."""


@dataclass(frozen=True)
class Cohort:
    """Says who took part in a round."""

    t: int
    population: int  # N
    size: int  # |S_t|
    mass: float  # sum of the population weights of S_t; |S_t| / N when uniform


class Federated(ABC, Generic[S, B, C, U]):
    """Declares a method with a server, which is cut at the wire: broadcast / local / update.

    A method is a frozen dataclass, whose fields are its hyper-parameters. Nothing is kept in
    `self`: states go in and come out. This one is SGD with a server, in a file `mine.py`:

        from dataclasses import dataclass
        from typing import NamedTuple

        import torch
        import undrift as ud


        class Server(NamedTuple):
            x: torch.Tensor  # the model; every state of a server has it


        @dataclass(frozen=True)
        class Mine(ud.Federated):
            lr: float
            server_lr: float = 1.0

            def init(self, x0):
                return Server(x0)

            def init_client(self, x0, down):
                return ()  # clients keep nothing

            def broadcast(self, server):
                return server.x

            def local(self, down, client, steps):
                y = steps(lambda y, f: y - self.lr * f.grad(y), down)
                return y - down, client  # an increment, never y itself

            def update(self, server, mean, cohort):
                return Server(server.x + self.server_lr * mean)

    `undrift check mine.py:Mine` checks it, `undrift run mine.py:Mine --lr 0.1` runs it, and
    `simulate(Mine(lr=0.1), model, clients, ...)` does so in a program. A variant of a method
    derives from its class: `@dataclass(frozen=True)` above `class Mine(ud.FedAvg)`.

    S is the state of the server, B what it broadcasts, C the state of a client, U its upload.
    """

    family: ClassVar[str] = "federated"

    @property
    def starts_at_broadcast(self) -> bool:
        """Return whether clients start their local steps at the model that the server sends."""
        return True

    @property
    def stall_cause(self) -> str:
        """Return what besides lr may keep the model at its start, with a remedy; "" if nothing."""
        return ""

    @property
    def needs_mean(self) -> str:
        """Return why no rule but the weighted mean may combine uploads, "" if one may."""
        return ""

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the model lacks what the method needs, before any work."""

    @abstractmethod
    def init(self, x0: Vector) -> S:
        """Return the server's state before the first round; its field `x` is the first model x0."""

    @abstractmethod
    def init_client(self, x0: Vector, down: B) -> C:
        """Return a client's state at its first round, from the first model and that broadcast."""

    @abstractmethod
    def broadcast(self, server: S) -> B:
        """Return what the server sends to every client of the cohort."""

    @abstractmethod
    def local(self, down: B, client: C, steps: Loop) -> tuple[U, C]:
        """Run one client's round.

        Args:
            down: what the server sent.
            client: state of this client after its last round.
            steps: runs its local minibatches.

        Returns:
            The upload, every leaf of which is an increment and never an absolute vector, and the
            client's new state.
        """

    @abstractmethod
    def update(self, server: S, mean: U, cohort: Cohort) -> S:
        """Return the server's next state from `mean`, the weighted mean of the cohort's uploads."""

    def enrol(self, server: S, share: float) -> S:
        """Return the server's state after newcomers with zero duals have enlarged the population.

        A server that holds a mean of duals over all clients multiplies it by `share`, the part of
        the new population that the old one makes up.
        """
        return server

    def pack(self, up: U, client: C, steps: Loop) -> tuple[Any, C]:
        """Return the tensors that travel, whose bytes are counted, and the client's new state."""
        return up, client

    def unpack(self, wire: Any) -> U:
        """Return the upload from the tensors that travelled."""
        return wire  # type: ignore[no-any-return]


class Prelude(Federated[S, B, C, U]):
    """Declares a method with one more exchange before the broadcast.

    It is with all of the cohort, or with those who take part for the first time; see `asks`.
    """

    @property
    def asks(self) -> Literal["all", "new", "nobody"]:
        """Return whom the server asks in a round: "all" of the cohort, the "new", or "nobody".

        The new are clients without a state. `hear` then gets the mean over them and a cohort of
        them; a round without new clients has one exchange.
        """
        return "all"

    @abstractmethod
    def ask(self, server: S) -> Any:
        """Return what the server sends in the first exchange."""

    @abstractmethod
    def answer(self, down: Any, client: C, steps: Loop) -> tuple[Any, C]:
        """Return a client's answer to `ask` and its state, which `local` receives."""

    @abstractmethod
    def hear(self, server: S, mean: Any, cohort: Cohort) -> S:
        """Return the server's state after the weighted mean of the answers; then it broadcasts."""


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

    def start_if_finite(self, v: Vector, rng: Generator) -> Any:
        """Return the share that `start` returns, or None if v is not finite.

        A merge overrides this where it can do both in one pass over v.
        """
        return self.start(v, rng) if tree.is_finite(v) else None

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

    def sent_bytes(self, share: Any, count: int) -> int | None:
        """Return the length of what `send` returns for a share that `receive` returns unchanged.

        A share then goes from worker to worker of one process as it is, and only its length is
        counted. None says that it is sent and received; a merge overrides this where these two
        take much longer than the length.
        """
        return None


class Comm(Protocol):
    """Offers what a peer can ask of the others; all of them ask the same, in the same order."""

    @property
    def size(self) -> int:
        """Return the number of peers."""

    def mix(self, tree: T) -> T:
        """Return sum_j W_ij v_j over the neighbours j and i itself, for each tensor v of `tree`."""

    def reduce(self, v: Vector, how: Merge) -> Vector:
        """Return the workers' vectors combined by `how`, on a route that the engine chooses."""


class Peer(ABC, Generic[N]):
    """Declares a method without a server, whose program is the paper's "worker m".

    N is the state of a node.
    """

    family: ClassVar[str] = "peer"

    @property
    def every_step(self) -> bool:
        """Return whether nodes communicate at every local step instead of once a round."""
        return False

    @property
    def meetings(self) -> int:
        """Return in how many of a round's first steps nodes meet.

        No client may have fewer steps, unless all have the same number.
        """
        return 1

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the model lacks what the method needs, before any work."""

    @abstractmethod
    def init(self, x0: Vector, f: Objective) -> N:
        """Return a node's state before the first round, from the first model and minibatch."""

    @abstractmethod
    def round(self, node: N, steps: Loop, comm: Comm) -> N:
        """Return a node's next state; `steps` runs its minibatches, `comm` reaches the others."""


class Gossip(Peer[N]):
    """Declares a peer method that mixes with its neighbours, so it needs a topology."""

    family = "gossip"


class AllReduce(Peer[N]):
    """Declares a peer method that reduces over all workers, so it needs a route."""

    family = "all-reduce"
