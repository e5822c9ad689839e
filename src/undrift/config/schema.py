"""The JSON Schema of an experiment, with the hyper-parameters of every method."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Any, get_args, get_type_hints

from undrift import models
from undrift.config.experiment import Experiment, Method
from undrift.config.hyperparameters import METHODS, as_text, without_none
from undrift.data import NAMES
from undrift.optim.rules import Rule

_OWN = {"type": "string", "pattern": ".+:.+", "description": "A method of your own, module:Class."}
_KINDS: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": ["integer", "string"], "description": "A whole number."},
    float: {"type": ["number", "string"], "description": "A number, or a schedule."},
    Rule: {"type": "string", "description": "sgd, momentum:0.9 or adam."},
}


def json_schema() -> dict[str, Any]:
    """What `Experiment.of` accepts, for editors that complete and check TOML."""
    schema = Experiment.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "An experiment of undrift"
    parts = schema["$defs"]
    parts["Data"]["properties"]["name"]["enum"] = list(NAMES)
    parts["Model"]["properties"]["name"]["enum"] = list(models.MODELS)
    several = parts["Evaluation"]["properties"]["target"]
    one = {**several.pop("items"), "description": "An accuracy."}
    parts["Share"] = one
    several["anyOf"] = [
        {"$ref": "#/$defs/Share"},
        {
            "type": several.pop("type"),
            "minItems": several.pop("minItems"),
            "items": {"$ref": "#/$defs/Share"},
        },
    ]
    common = parts["Method"]
    parts["Method"] = {
        "anyOf": [
            *({"$ref": f"#/$defs/method-{name}"} for name in METHODS),
            {**common, "properties": {**common["properties"], "name": _OWN}},
        ]
    }
    for name, cls in METHODS.items():
        parts[f"method-{name}"] = _method(name, cls, common)
    return schema


def _method(name: str, cls: type, common: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    own = {field.name: _kind(hints[field.name], field.default) for field in fields(cls)}
    shared = {key: common["properties"][key] for key in Method.model_fields if key != "name"}
    return {
        "type": "object",
        "description": (inspect.getdoc(cls) or "").splitlines()[0],
        "properties": {"name": {"const": name}, **own, **shared},
        "required": ["name"],
        "additionalProperties": False,
    }


def _kind(annotation: Any, default: Any) -> dict[str, Any]:
    kind, optional = without_none(annotation)
    choices = [*get_args(kind), *(["none"] if optional else [])]
    found = dict(_KINDS.get(kind) or {"enum": choices})
    if default is not MISSING and default is not None:
        found["default"] = as_text(default)
    return found
