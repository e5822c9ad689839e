"""Data sets, their partition among clients, and the work of each client.

Names are imported when they are first used, so that places of data sets are known without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `_MODULES` says at run time, for type checkers and editors
    from undrift.data import partition
    from undrift.data.availability import Availability, Replaced, Resampled, Spans
    from undrift.data.clients import Clients
    from undrift.data.dataset import Dataset
    from undrift.data.datasets import load
    from undrift.data.embedded import digits
    from undrift.data.formats.images import read_image_folder, read_image_table
    from undrift.data.formats.imdb import read_imdb
    from undrift.data.formats.libsvm import read_libsvm
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
    from undrift.data.places import NAMES
    from undrift.data.prepare import Images, Prepare, Tokens
    from undrift.data.stored import Samples, Stored
    from undrift.data.synthetic import KnownConstants, Quadratics, known_constants, quadratics
    from undrift.data.tables.read import read_table
    from undrift.data.work import Deadline, Epochs, GaussianSteps, Steps, UniformSteps, Work

_MODULES = {  # module: the names that are taken from it
    "availability": "Availability Replaced Resampled Spans",
    "clients": "Clients",
    "dataset": "Dataset",
    "datasets": "load",
    "embedded": "digits",
    "formats.images": "read_image_folder read_image_table",
    "formats.imdb": "read_imdb",
    "formats.libsvm": "read_libsvm",
    "huggingface": "from_huggingface",
    "partition": "classes_per_client dirichlet iid natural quantity replicated shards",
    "places": "NAMES",
    "prepare": "Images Prepare Tokens",
    "stored": "Samples Stored",
    "synthetic": "KnownConstants Quadratics known_constants quadratics",
    "tables.read": "read_table",
    "work": "Deadline Epochs GaussianSteps Steps UniformSteps Work",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> Any:
        if name == "partition":
            return import_module("undrift.data.partition")
        if name not in _HOMES:
            raise AttributeError(f"undrift.data has no {name!r}.", name=name)
        value = getattr(import_module(f"undrift.data.{_HOMES[name]}"), name)
        globals()[name] = value  # the next access does not come here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
