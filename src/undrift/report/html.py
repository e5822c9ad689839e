"""A comparison as one HTML file that needs neither network nor server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from undrift.check import require
from undrift.errors import optional
from undrift.files import write_atomic
from undrift.report.comparison import Comparison
from undrift.report.curves import for_script
from undrift.report.page_sites import at_sites
from undrift.report.page_tables import over_clients, primary, results, to_target
from undrift.report.partition_map import partition_map
from undrift.report.summary import endings, summary
from undrift.results.strictjson import dumps

DRAWING = ("scales.js", "marks.js", "curves.js")


def page(comparison: Comparison) -> str:
    """Return the page as HTML; every value is shown as text, whatever it contains."""
    jinja = optional("jinja2", "A report's page", "report")
    Markup = optional("markupsafe", "A report's page", "report").Markup
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_asset("page.html.j2"))
    curves, partition = for_script(comparison), partition_map(comparison)
    names = [*DRAWING, "page.js"] if curves["metrics"] else ["page.js"]
    scripts = [_asset(name) for name in names]
    rendered: str = template.render(
        comparison=comparison,
        summary=summary(comparison),
        metric=primary(comparison),
        curves=curves,
        chips={each["label"]: each for each in curves["methods"]},
        curves_json=Markup(_embedded(curves)),
        results=results(comparison),
        targets=_targets(comparison),
        over_clients=over_clients(comparison),
        at_sites=at_sites(comparison),
        endings=endings(comparison),
        settings={label: trials[0].settings for label, trials in comparison.methods.items()},
        partition=partition,
        partition_json=Markup(_embedded(partition.data)) if partition else "",
        environment=_flat(comparison.environment),
        style=Markup(_asset("style.css")),
        scripts=[Markup(each) for each in scripts],
        policy=_policy(scripts),
    )
    return rendered


def write(comparison: Comparison, path: Path) -> None:
    """Write the page to a file; the file appears as a whole."""
    folder = Path(path).parent
    require(folder.is_dir(), "A report's page", "a folder that is there", str(folder), "make it")
    text = page(comparison)
    # Lone surrogates, as in undecodable file names, have no UTF-8, so they become question marks.
    write_atomic(Path(path), text.encode("utf-8", errors="replace"))


def _asset(name: str) -> str:
    """Return the text of a file beside this module."""
    return files("undrift.report").joinpath(name).read_text(encoding="utf-8")


def _targets(comparison: Comparison) -> list[Any]:
    """Return one table per target, or none if the methods do not classify."""
    if primary(comparison) != "accuracy":
        return []
    return [to_target(comparison, accuracy) for accuracy in comparison.targets]


def _embedded(data: Any) -> str:
    """Return JSON in which nothing can end the script element that holds it."""
    text = dumps(data, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _policy(scripts: list[str]) -> str:
    """Return a policy that allows only these scripts and no requests, should escaping ever fail."""
    digests = [hashlib.sha256(each.encode()).digest() for each in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return {"git": {"commit": "1f"}} as {"git.commit": "1f"}."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = "" if value is None else str(value)
    return flat
