"""Methods of one's own: classes that `module:Class` names, and the objects made of them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

from undrift.core import Federated, Peer
from undrift.errors import UndriftError, first_line
from undrift.usercode.load import import_object


def own_class(text: str) -> type:
    """Return the class that `module:Class` or `folder/file.py:Class` names, if it is a method."""
    cls = import_object(text, "A method")
    fits = isinstance(cls, type) and issubclass(cls, Federated | Peer) and is_dataclass(cls)
    got = f"the class {cls.__name__}" if isinstance(cls, type) else repr(cls)
    if not fits:
        model = isinstance(cls, type) and any(each.__name__ == "Module" for each in cls.__mro__)
        remedy = f"; a model is --model {text}" if model else ""
        raise ValueError(
            "A method needs a dataclass derived from Federated, Gossip or AllReduce, got "
            f"{got}{remedy}."
        )
    method: type = cls
    _require_fields(method)
    return method


def _require_fields(cls: type) -> None:
    """Raise a ValueError if a method has hyper-parameters that are not fields of its dataclass."""
    known = [field.name for field in fields(cls) if field.init]
    own = "__init__" in vars(cls) and set(inspect.signature(cls).parameters) != set(known)
    missing = [name for name in inspect.signature(cls).parameters if own and name not in known]
    declared = "__dataclass_fields__" in vars(cls)
    here = {} if declared else inspect.get_annotations(cls)
    annotated = [name for name, kind in here.items() if "ClassVar" not in str(kind)]
    if own or annotated:
        name = next(iter([*missing, *annotated]), "damp")
        raise ValueError(
            f"{cls.__name__} needs its hyper-parameters as fields, got "
            f"{'an __init__ of its own' if own else 'a class without @dataclass(frozen=True)'}; "
            f"write @dataclass(frozen=True) above it and in it `{name}: float = 0.5`"
            f"{', without the __init__' if own else ''}."
        )


def made(cls: type, values: Mapping[str, Any]) -> Any:
    """Return the object of a method, whose own code may raise anything."""
    try:
        return cls(**values)
    except (ValueError, UndriftError, ImportError):
        raise
    except FrozenInstanceError as error:
        raise ValueError(
            f"{cls.__name__} needs to be a value, got code that sets its own attributes "
            f"({first_line(error)}); make each hyper-parameter a field of the dataclass, such as "
            "`damp: float = 0.5`, and compute the rest where it is used."
        ) from error
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{cls.__name__} needs a constructor without errors, got "
            f"{first_line(error, named=True)} ({where.filename}, line {where.lineno})."
        ) from error
