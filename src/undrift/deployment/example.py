"""Tables of three hospitals that do not exist, for the example of a federation.

The rows are drawn by a generator: no patient is behind any of them. Hospitals differ in the age of
their patients, in how often a ward is used, and in how they measure the marker.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from undrift import keyed
from undrift.data.tables.preprocessing import CategoryColumn, NumberColumn, Preprocessing, Target

WARDS = ("medicine", "surgery", "intensive")
HOSPITALS = {  # rows, mean age, shares of the wards, shift of the marker
    "north": (900, 68.0, (0.6, 0.3, 0.1), 0.0),
    "south": (500, 45.0, (0.3, 0.6, 0.1), 0.8),
    "west": (250, 58.0, (0.2, 0.2, 0.6), -0.6),
}
TARGET = "readmitted"


def columns() -> Preprocessing:
    """Return the columns of the tables, with scales that are declared and not measured."""
    return Preprocessing(
        (
            NumberColumn("age", 55.0, 18.0),
            NumberColumn("days", 6.0, 5.0),
            NumberColumn("marker", 0.0, 1.2),
            CategoryColumn("ward", WARDS),
        ),
        Target(TARGET, ("no", "yes")),
    )


def write_table(path: Path, hospital: str) -> None:
    """Write the table of one hospital, which only its owner can read."""
    rows, age, shares, shift = HOSPITALS[hospital]
    draws = keyed.generator(0, f"hospital {hospital}")
    ages = np.clip(draws.normal(age, 12.0, rows), 18, 99).round()
    days = draws.gamma(2.0, 3.0, rows).round() + 1
    wards = draws.choice(len(WARDS), rows, p=shares)
    marker = draws.normal(shift, 1.0, rows)
    risk = 0.05 * (ages - 55) + 0.12 * (days - 6) + 1.3 * (marker - shift) + 0.9 * (wards == 2)
    sick = draws.random(rows) < 1 / (1 + np.exp(-risk))
    with path.open("w", newline="", encoding="utf-8") as file:
        path.chmod(0o600)
        writer = csv.writer(file)
        writer.writerow(["age", "days", "marker", "ward", TARGET])
        for row in zip(ages, days, marker, wards, sick, strict=True):
            words = f"{row[0]:.0f}", f"{row[1]:.0f}", f"{row[2]:.4f}", WARDS[row[3]]
            writer.writerow([*words, "yes" if row[4] else "no"])
