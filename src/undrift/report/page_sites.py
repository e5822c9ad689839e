"""The table of a federation's sites: what each of them found in the last test."""

from __future__ import annotations

from functools import partial

from undrift.report.comparison import Comparison
from undrift.report.numerals import NONE, spread_amount, spread_percent
from undrift.report.page_tables import Cell, ReportTable, gather
from undrift.results.trial import Trial


def at_sites(comparison: Comparison) -> ReportTable | None:
    """Return the table of the sites' own scores, None where no site has tested anything."""
    found = [record.site_scores for record in comparison.records if record.site_scores]
    if not found:
        return None
    labelled = any(score["accuracy"] is not None for scores in found for score in scores.values())
    metric = "accuracy" if labelled else "loss"
    show, unit = (spread_percent, ",\u00a0%") if labelled else (spread_amount, "")
    columns = {}
    for site in sorted({name for scores in found for name in scores}):
        values = gather(comparison.methods, partial(_last, site=site, metric=metric))
        columns[f"{site}{unit}"] = {
            label: Cell(NONE if each.spread is None else show(each.spread), each.part)
            for label, each in values.items()
        }
    rows = {label: [column[label] for column in columns.values()] for label in comparison.methods}
    return ReportTable(f"{metric.capitalize()} at each site, in the last test", list(columns), rows)


def _last(trial: Trial, *, site: str, metric: str) -> float | None:
    """Return what a site found in the last test of a trial, None if that was without it."""
    tests = [record.site_scores for record in trial.records if record.site_scores]
    return tests[-1].get(site, {}).get(metric) if tests else None
