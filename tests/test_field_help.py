"""Every hyper-parameter has one sentence of help, which help() and the schema show."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Any

import pytest

import undrift as ud
from undrift.config.schema import json_schema
from undrift.field_help import documented, field_help

WRAPPERS = (ud.Accelerated, ud.Compressed)
PARTS = (ud.Momentum, ud.Adam, ud.QSGD, ud.TopK)
EVERY: tuple[Any, ...] = (*ud.ALGORITHMS, *WRAPPERS, *PARTS)
ALL = pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)


@ALL
def test_every_field_has_a_sentence(cls: Any) -> None:
    texts = field_help(cls)
    assert list(texts) == [field.name for field in fields(cls)]
    for text in texts.values():
        assert text.endswith(".")
        assert text[0].isupper()
        assert ". " not in text.removesuffix(".").replace("Eq. ", "")  # one sentence


@ALL
def test_help_shows_the_summary_and_then_every_field(cls: Any) -> None:
    summary, _, rest = (inspect.getdoc(cls) or "").partition("\n")
    assert summary.endswith(".")
    assert "Parameters:" in rest
    for name, text in field_help(cls).items():
        assert f"    {name}: {text}" in rest.splitlines()


@pytest.mark.parametrize("cls", ud.ALGORITHMS, ids=lambda cls: cls.__name__)
def test_the_schema_shows_every_field(cls: Any) -> None:
    properties = json_schema()["$defs"][f"method-{cls.__name__.lower()}"]["properties"]
    for name, text in field_help(cls).items():
        assert properties[name]["description"].startswith(text)


@documented
@dataclass(frozen=True)
class Base:
    """Has two fields."""

    a: int
    """First."""
    b: int = 0
    """Second,
    on two lines."""

    def method(self) -> None:
        """Be no help of a field."""


@dataclass(frozen=True)
class Derived(Base):
    """Has a field more and another help for one."""

    b: int = 1
    """Other."""
    c: int = 2


def test_bases_are_read_first_and_in_the_order_of_fields() -> None:
    assert field_help(Base) == {"a": "First.", "b": "Second, on two lines."}
    assert field_help(Derived) == {"a": "First.", "b": "Other."}
    expected = "Has two fields.\n\nParameters:\n    a: First.\n    b: Second, on two lines."
    assert Base.__doc__ == expected
    assert Derived.__doc__ == "Has a field more and another help for one."


def test_a_class_without_source_has_no_help() -> None:
    space: dict[str, Any] = {"dataclass": dataclass, "__name__": "nowhere"}
    source = '@dataclass\nclass Typed:\n    """In."""\n    a: int\n    """First."""'
    exec(compile(source, "nowhere", "exec", dont_inherit=True), space)
    assert field_help(space["Typed"]) == {}
    assert documented(space["Typed"]).__doc__ == "In."
