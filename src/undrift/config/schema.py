"""The JSON Schema of an experiment, with the hyper-parameters of every method."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from undrift import models
from undrift.config.experiment import Experiment, Method
from undrift.config.hyperparameters import METHODS, Parameter, as_text, parameters_of, summary_of
from undrift.data import NAMES

_OWN = {"type": "string", "pattern": ".+:.+", "description": "A method of your own, file.py:Class."}
_TYPES: dict[str, Any] = {
    "switch": "boolean",
    "whole": ["integer", "string"],
    "number": ["number", "string"],
    "rule": "string",
}
_FORMS = {  # what a value may look like, where the type does not say it
    "whole": "A whole number.",
    "number": "A number, or a schedule.",
    "rule": "sgd, momentum:0.9, adam or adamw.",
}


def json_schema() -> dict[str, Any]:
    """Return what `Experiment.of` accepts, for editors that complete and check TOML."""
    schema = Experiment.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "An experiment of undrift"
    parts = schema["$defs"]
    for part, known in (("Data", NAMES), ("Model", models.MODELS)):
        name = parts[part]["properties"]["name"]
        name["anyOf"] = [{"enum": list(known)}, {"type": name.pop("type"), "pattern": ".+:.+"}]
    targets = parts["Evaluation"]["properties"]["target"]
    parts["Share"] = {**targets.pop("items"), "description": "An accuracy."}
    targets["anyOf"] = [
        {"$ref": "#/$defs/Share"},
        {
            "type": targets.pop("type"),
            "minItems": targets.pop("minItems"),
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
    """Return the schema of one method's table, with the fields that all methods have."""
    own = {parameter.name: _property(parameter) for parameter in parameters_of(cls)}
    shared = {key: common["properties"][key] for key in Method.model_fields if key != "name"}
    return {
        "type": "object",
        "description": summary_of(cls),
        "properties": {"name": {"const": name}, **own, **shared},
        "required": ["name"],
        "additionalProperties": False,
    }


def _property(parameter: Parameter) -> dict[str, Any]:
    """Return the schema of one hyper-parameter."""
    schema: dict[str, Any]
    if parameter.kind in _TYPES:
        schema = {"type": _TYPES[parameter.kind]}
    else:
        schema = {"enum": [*parameter.choices, *(["none"] if parameter.optional else [])]}
    description = f"{parameter.help} {_FORMS.get(parameter.kind, '')}".strip()
    if description:
        schema["description"] = description
    if parameter.default is not MISSING and parameter.default is not None:
        schema["default"] = as_text(parameter.default)
    return schema
