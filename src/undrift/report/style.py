"""One style for all pictures: colours, dashes, fonts, sizes, and figures that need no display.

Files look the same whatever the user's matplotlib settings are. Only a plot in a notebook has the
colours and fonts of that notebook, because it is drawn beside the user's own plots.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from undrift.errors import import_or_none, optional
from undrift.files import atomic_file

# Okabe and Ito chose these colours for colour-blind readers; yellow, orange and sky blue are darker
# here, because they must be seen on white paper. Seven colours and five dashes make 35 lines.
COLOURS = ("#0072b2", "#d55e00", "#008763", "#b4518b", "#2f2f2f", "#a06a00", "#3a86b0")
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 3), (2, 2.2), (9, 3, 2, 3), (4, 2.5))
COLOUR_MAP, COUNT_MAP = "viridis", "YlGnBu"  # of measured values; of counts, from white on
LINE_WIDTH = 1.6  # on a screen
BAND_ALPHA = 0.15  # of the band between the seeds of a method
SCREEN_DPI, PAPER_DPI = 150, 300

_FONTS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so it is the same everywhere
    "lines.scale_dashes": False,
}
SCREEN: dict[str, Any] = {**_FONTS, "lines.linewidth": LINE_WIDTH, "figure.titlesize": 10}
PAPER: dict[str, Any] = {
    **_FONTS,
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,  # TrueType, because journals refuse Type 3
    "svg.hashsalt": "undrift",
}


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return import_or_none("matplotlib.figure") is not None


def drawing(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """Return a context in which `SCREEN` or `PAPER` holds instead of the user's settings."""
    style = optional("matplotlib.style", "A figure", "report")
    context: AbstractContextManager[None] = style.context(["default", settings])
    return context


def new_figure(size: tuple[float, float] | None = None) -> Any:
    """Return an empty figure of so many inches, which is kept by nobody else and never shown."""
    figure = optional("matplotlib.figure", "A figure", "report").Figure(
        figsize=size, layout="constrained"
    )
    optional("matplotlib.backends.backend_agg", "A figure", "report").FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: str | Path, *, dpi: int = SCREEN_DPI, **options: Any) -> None:
    """Write a picture of the kind that the suffix says, PNG without one; it appears as a whole.

    `options` are those of matplotlib's `savefig`.
    """
    path = Path(path) if Path(path).suffix else Path(path).with_suffix(".png")
    # The format is named, because the file has another suffix until it is complete.
    with atomic_file(path) as part:
        figure.savefig(part, format=path.suffix[1:], dpi=dpi, **options)


def line(index: int) -> dict[str, Any]:
    """Return colour and dashes of the method with this number, as matplotlib names them."""
    pattern = dash(index)
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": (0, pattern) if pattern else "solid",
    }


def dash(index: int) -> tuple[float, ...]:
    """Return the dashes of the method with this number; () stands for a solid line."""
    return DASHES[index % len(DASHES)]


def trim(axes: Any) -> None:
    """Draw a faint grid behind the curves and leave out the upper and right border."""
    axes.grid(color="#e2e2e2", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def whole_ticks(axis: Any, most: int | str = "auto") -> None:
    """Put the ticks of one axis at whole numbers only, at most so many."""
    ticker = optional("matplotlib.ticker", "A figure", "report")
    axis.set_major_locator(ticker.MaxNLocator(most, integer=True, steps=[1, 2, 5, 10]))


def literal(text: str) -> str:
    """Escape dollar signs, which would begin a formula."""
    return text.replace("$", r"\$")
