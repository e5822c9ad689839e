"""Records of rounds, and their totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
# A file has no other fields than the class, and their values become of its types.
STRICT = {"extra": "forbid"}

NESTED = (
    "metrics",
    "validation_metrics",
    "lower",
    "client_metrics",
    "client_samples",
    "site_scores",
    "untested",
)  # no numbers
CLIENTS = "client_"  # begins the name of a figure over clients, such as client_accuracy_worst
VALIDATION = "validation_"  # begins the name of a metric on validation samples


def plain(value: float) -> str:
    """Return a number with four digits, or from 10,000 to 1e7 as a whole one."""
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e7 else f"{value:.4g}"


@dataclass(frozen=True)
class Record:
    """Holds what one round measured and cost; `Totals` adds up the costs of all rounds."""

    __pydantic_config__: ClassVar[Any] = STRICT

    round: int  # rounds completed, from 1
    clients: int  # distinct clients that took part
    loss: float | None  # on the test set, or else on training data; None when not evaluated
    accuracy: float | None  # top-1 on the same data; None when not evaluated or not a classifier
    bytes_up: int
    bytes_down: int
    gradients: int  # minibatch gradients evaluated, over all clients
    samples: int  # samples those gradients were taken on
    seconds: float  # wall time of the round without evaluation, which is `evaluation_seconds`
    evaluation_seconds: float = field(default=0.0, kw_only=True)
    train_loss: float | None = field(default=None, kw_only=True)  # objective; None unless asked for
    # The next two are None unless validation samples were split off; nobody trains on these.
    validation_loss: float | None = field(default=None, kw_only=True)
    validation_accuracy: float | None = field(default=None, kw_only=True)
    # The next three fields are None unless the run has devices.
    simulated_seconds: float | None = field(default=None, kw_only=True)  # on them, with waiting
    utilisation: float | None = field(default=None, kw_only=True)  # mean share spent computing
    missed: int | None = field(
        default=None, kw_only=True
    )  # chosen clients that failed or were late
    # Bad updates that were left out, as client: reason; None where there was none.
    dropped: dict[str, str] | None = field(default=None, kw_only=True)
    # The next two fields are None unless asked for by `sharpness`.
    sharpness: float | None = field(default=None, kw_only=True)  # loss one ascent step away, less F
    hessian: float | None = field(default=None, kw_only=True)  # its largest eigenvalue
    # The next three fields are None unless a run has metrics besides loss and accuracy. A metric is
    # None in a round that was not evaluated, and where it is not defined for the samples.
    metrics: Mapping[str, float | None] | None = field(default=None, kw_only=True)
    validation_metrics: Mapping[str, float | None] | None = field(default=None, kw_only=True)
    lower: Sequence[str] | None = field(default=None, kw_only=True)  # of which less is better
    # The next two fields are None unless asked for by `client_metrics`: by metric the mean, the
    # standard deviation and the mean of the worst tenth over the clients for which it is defined,
    # their number and that of the others; and which of the clients' samples were taken.
    client_metrics: Mapping[str, Mapping[str, float]] | None = field(default=None, kw_only=True)
    client_samples: str | None = field(default=None, kw_only=True)
    # The next two fields are of a federation's tests: by site its loss, accuracy and samples, and
    # the sites whose sums did not come or cannot be right, with the reason.
    site_scores: Mapping[str, Mapping[str, float | None]] | None = field(default=None, kw_only=True)
    untested: Mapping[str, str] | None = field(default=None, kw_only=True)
    # CKA is the mean over layers and pairs of clients, and None unless a tap measures it.
    cka: float | None = field(default=None, kw_only=True)

    @property
    def all_seconds(self) -> float:
        """Return the seconds of training and evaluation together."""
        return self.seconds + self.evaluation_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name."""
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """Return all numbers by name: the fields, then each metric under its own name."""
        values = {name: value for name, value in self.to_dict().items() if name not in NESTED}
        values |= self.metrics or {}
        validated = (self.validation_metrics or {}).items()
        values |= {f"{VALIDATION}{name}": value for name, value in validated}
        spreads = (self.client_metrics or {}).items()
        return values | {
            f"{CLIENTS}{name}_{figure}": value
            for name, spread in spreads
            for figure, value in spread.items()
        }

    def __str__(self) -> str:
        parts = [f"round {self.round:4d}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.4f}")
        parts += [f"{k} {plain(v)}" for k, v in (self.metrics or {}).items() if v is not None]
        parts.append(f"up {self.bytes_up / 1e6:.3f} MB  down {self.bytes_down / 1e6:.3f} MB")
        seconds = f"{self.seconds:.3f} s + {self.evaluation_seconds:.3f} s evaluating"
        parts.append(f"gradients {self.gradients}  {seconds}")
        if self.dropped:
            parts.append(f"dropped {len(self.dropped)}")
        if self.simulated_seconds is not None:
            parts.append(f"simulated {self.simulated_seconds:.3f} s")
        return "  ".join(parts)


@dataclass(frozen=True)
class PeerRecord(Record):
    """Holds one round of peers; loss and accuracy are those of the mean of their models.

    `bytes_up` is what the peers sent, `bytes_down` what a parameter server sent, if there is one.
    """

    node_accuracy: float | None  # mean over the nodes of their own models' accuracies
    # Consensus is the mean over the nodes of the squared distance to the mean model. It is None
    # where several processes hold the nodes and the round was not evaluated.
    consensus: float | None
    gradient_norm: float | None  # of the mean model, on all training data; None unless asked for
    bytes_per_worker: int  # sent by the busiest one
    bytes_per_link: int  # carried by the busiest link, one way
    hops: int  # messages that had to wait for each other
    bits: float | None  # per coordinate and hop; None when nothing was sent
    sign_matching: float | None  # share of signs that lossy reductions got as the exact sum has

    def __str__(self) -> str:
        consensus = "-" if self.consensus is None else f"{self.consensus:.3g}"
        return f"{super().__str__()}  consensus {consensus}"


@dataclass
class Totals:
    """Holds the costs of a run so far, also of the rounds before a resume."""

    __pydantic_config__: ClassVar[Any] = STRICT

    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0
    samples: int = 0
    seconds: float = 0.0  # of training
    evaluation_seconds: float = 0.0
    simulated_seconds: float = 0.0  # the simulated clock

    @property
    def all_seconds(self) -> float:
        """Return the seconds of training and evaluation together."""
        return self.seconds + self.evaluation_seconds

    def add(self, record: Record) -> None:
        """Add the costs of one round."""
        for each in fields(self):
            spent = getattr(record, each.name) or 0
            setattr(self, each.name, getattr(self, each.name) + spent)


def record_of(values: Any) -> Record:
    """Return the record that `to_dict` made of one, or raise `ValueError`."""
    peers = isinstance(values, dict) and "consensus" in values
    return from_fields(PeerRecord if peers else Record, values)


def from_fields(cls: type[T], values: Any) -> T:
    """Return a dataclass of fields that come from a file, or raise `ValueError`."""
    from pydantic import ValidationError  # A simulation that reads nothing does without it.

    named: Any = cls
    try:
        value: T = _adapter(named).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or cls.__name__
        raise ValueError(f"{where}: {first['msg'].lower()}") from None
    return value


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    """Return what checks the fields of a class; making it takes milliseconds."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)
