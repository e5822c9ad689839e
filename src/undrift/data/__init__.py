"""Data sets, their partition among clients, and the work of each client."""

from undrift.data import partition
from undrift.data.availability import Availability, Replaced, Resampled, Spans
from undrift.data.clients import Clients
from undrift.data.dataset import Dataset
from undrift.data.datasets import NAMES, load
from undrift.data.embedded import digits
from undrift.data.formats.images import read_image_folder, read_image_table
from undrift.data.formats.imdb import read_imdb
from undrift.data.formats.libsvm import read_libsvm
from undrift.data.formats.table import read_table
from undrift.data.huggingface import from_huggingface
from undrift.data.partition import (
    classes_per_client,
    dirichlet,
    iid,
    natural,
    quantity,
    replicated,
    shards,
)
from undrift.data.prepare import Images, Prepare, Tokens
from undrift.data.stored import Samples, Stored
from undrift.data.synthetic import KnownConstants, Quadratics, known_constants, quadratics
from undrift.data.work import Deadline, Epochs, GaussianSteps, Steps, UniformSteps, Work

__all__ = [
    "NAMES",
    "Availability",
    "Clients",
    "Dataset",
    "Deadline",
    "Epochs",
    "GaussianSteps",
    "Images",
    "KnownConstants",
    "Prepare",
    "Quadratics",
    "Replaced",
    "Resampled",
    "Samples",
    "Spans",
    "Steps",
    "Stored",
    "Tokens",
    "UniformSteps",
    "Work",
    "classes_per_client",
    "digits",
    "dirichlet",
    "from_huggingface",
    "iid",
    "known_constants",
    "load",
    "natural",
    "partition",
    "quadratics",
    "quantity",
    "read_image_folder",
    "read_image_table",
    "read_imdb",
    "read_libsvm",
    "read_table",
    "replicated",
    "shards",
]
