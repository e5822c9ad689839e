"""The commented file that `undrift init` writes, made from the fields of an experiment."""

from __future__ import annotations

import json
import textwrap
from dataclasses import fields
from typing import Any

from pydantic.fields import FieldInfo

from undrift.config.experiment import Experiment, Part
from undrift.config.hyperparameters import build, hyper_parameters, method_class


def section_lines(*, server: bool) -> list[str]:
    """Return the sections with all their fields; methods without a server have other training."""
    lines = []
    for section, field in Experiment.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Part) and section != "sweep":
            lines += ["", f"[{section}]  # {(kind.__doc__ or '').strip().splitlines()[0]}"]
            for name, own in kind.model_fields.items():
                lines += _field_lines(name, own, _values(server=server).get(section, {}))
    return lines


def method_lines(name: str) -> list[str]:
    """Return the table of a method with all its hyper-parameters."""
    return ["", "[[methods]]", f"name = {_toml(name)}", *_hyper_parameters(method_class(name))]


def _values(*, server: bool) -> dict[str, dict[str, Any]]:
    """Return the values that are not in comments: peers have no participation and other work."""
    training: dict[str, Any] = {"rounds": 20, "batch_size": 20}
    if server:
        training |= {"work": "epochs:2", "participation": 0.5}
    return {
        "data": {"name": "digits", "clients": 20, "partition": "dirichlet:0.3"},
        "model": {"name": "mlp"},
        "training": training,
    }


def _field_lines(name: str, field: FieldInfo, values: dict[str, Any]) -> list[str]:
    comment = textwrap.wrap(
        field.description or "", 96, initial_indent="# ", subsequent_indent="# "
    )
    default = field.get_default(call_default_factory=True)
    if name in values:
        return [*comment, f"{name} = {_toml(values[name])}"]
    line = f"# {name}: not set" if default is None else f"# {name} = {_toml(default)}"
    return [*comment, line]


def _hyper_parameters(cls: type) -> list[str]:
    values = hyper_parameters(build(cls, {}))
    lines = []
    for field in fields(cls):
        mark = "" if field.name == "lr" else "# "
        if field.name in values:
            lines.append(f"{mark}{field.name} = {_toml(values[field.name])}")
        else:
            lines.append(f"# {field.name}: not set")
    return lines


def _toml(value: Any) -> str:
    """Return a value as TOML, which for text, numbers, truth and lists is what JSON is."""
    return json.dumps(value)
