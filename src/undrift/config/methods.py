"""A method of an experiment: its name, its hyper-parameters, and what wraps it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from undrift.check import require
from undrift.config.hyperparameters import (
    METHODS,
    apply_wrappers,
    as_text,
    build,
    hyper_parameters,
    method_class,
    parse_codec,
)
from undrift.config.sections import Part, WorkForm, parsed_by
from undrift.usercode.load import may_import
from undrift.usercode.names import absolute_name, is_code

CodecForm = Annotated[str, parsed_by(parse_codec)]


class Method(Part):
    """Says which method is run: its name, hyper-parameters beside it, and what wraps it."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = Field(description="As `undrift list` shows it, or file.py:Class for your own.")
    label: str | None = Field(None, min_length=1, description="What tables call it.")
    work: WorkForm | None = Field(None, description="Its own local work, instead of training.work.")
    accelerate: float | None = Field(None, description="lam of accelerated broadcast (X + ACG).")
    codec: CodecForm | None = Field(
        None, description="Of uploads: qsgd:8, qsgd:8:512, qsgd:8:tensor, scaled-sign, top-k:0.01."
    )
    error_feedback: bool = Field(False, description="Keep what the codec loses for later.")

    @model_validator(mode="before")
    @classmethod
    def _as_toml_has_it(cls, values: Any) -> Any:
        """Return the values with schedules and rules as text, and known names in lower case."""
        if not isinstance(values, Mapping):
            return values
        plain = {name: as_text(value) for name, value in values.items()}
        name = plain.get("name")
        if isinstance(name, str) and name.lower() in METHODS:
            plain["name"] = name.lower()
        return plain

    @field_validator("accelerate")
    @classmethod
    def _ahead(cls, lam: float | None) -> float | None:
        require(lam is None or 0 <= lam < 1, "accelerate", "a number in [0, 1) such as 0.85", lam)
        return lam

    @model_validator(mode="after")
    def _buildable(self) -> Self:
        if self.known:
            self.build()
        return self

    @property
    def known(self) -> bool:
        """Return whether the method's class is at hand; whoever only reads imports none."""
        return may_import() or not is_code(self.name)

    @property
    def cls(self) -> type:
        """Return the method's class."""
        return method_class(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the hyper-parameters that the experiment gives."""
        return dict(self.model_extra or {})

    @property
    def title(self) -> str:
        """Return the method's name in tables: its label, or its class and what wraps it."""
        if self.label is not None:
            return self.label
        added = " + ACG" if self.accelerate is not None else ""
        own = is_code(self.name)
        name = self.name.rpartition(":")[2] if own else self.cls.__name__
        return f"{name}{added}{f' + {self.codec}' if self.codec else ''}"

    def build(self) -> Any:
        """Return the algorithm."""
        return apply_wrappers(
            build(self.cls, self.settings),
            accelerate=self.accelerate,
            codec=self.codec,
            error_feedback=self.error_feedback,
        )

    def with_defaults(self) -> Method:
        """Return the method with every hyper-parameter written out, defaults too."""
        own = hyper_parameters(build(self.cls, self.settings))
        values = {**own, **self.model_dump(include=set(Method.model_fields))}
        return Method(**{**values, "name": absolute_name(self.name, Path())})
