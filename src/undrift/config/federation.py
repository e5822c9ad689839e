"""The section of an experiment whose data stay at their sites."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from undrift.check import require
from undrift.config.sections import Count, FilePath, Names, Part, Positive

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
ADDRESS = "127.0.0.1:9092"
DEADLINE, PATIENCE = 600.0, 300.0


class Federation(Part):
    """Names the sites of `undrift federation`; each site's own data take the place of [data]."""

    sites: Names = Field((), description="Names of the sites; each has a key of its own.")
    address: str | None = Field(
        None, description=f"HOST:PORT where sites reach the centre; {ADDRESS}."
    )
    columns: FilePath | None = Field(
        None, description="JSON of the columns that all tables have, and how they are scaled."
    )
    agree: bool = Field(
        False,
        description="Tables agree on columns by one exchange of counts and sums; data.target, "
        "data.path and others beside it say what is agreed on.",
    )
    inputs: Annotated[tuple[Count, ...], Field(strict=False)] = Field(
        (), description="Shape of one sample, such as [1, 28, 28], where data are no tables."
    )
    outputs: Count | None = Field(None, description="Classes, or numbers that are predicted.")
    deadline: Positive | None = Field(
        None,
        description=f"Seconds after which a site that has not replied is left out; {DEADLINE:g}.",
    )
    patience: Positive | None = Field(
        None, description=f"Seconds in which all sites must have connected; {PATIENCE:g}."
    )

    @field_validator("sites")
    @classmethod
    def _named(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        for name in sites:
            expected = "letters, digits, - and _, at most 32"
            require(NAME.fullmatch(name) is not None, "federation.sites", expected, name)
        different = len(set(sites)) == len(sites)
        require(different, "federation.sites", "different names", list(sites), "rename one")
        return sites

    @field_validator("address")
    @classmethod
    def _place(cls, address: str | None) -> str | None:
        if address is not None:
            host, _, port = address.rpartition(":")
            valid = bool(host) and port.isdigit() and 0 < int(port) < 65535
            require(
                valid, "federation.address", "HOST:PORT such as centre.example.org:9092", address
            )
        return address

    @property
    def host(self) -> str:
        """Return the host where sites reach the centre."""
        return (self.address or ADDRESS).rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Return the port where sites reach the centre."""
        return int((self.address or ADDRESS).rpartition(":")[2])
