"""`RecordDisplay` shows a run in a terminal and in a notebook."""

from __future__ import annotations

from typing import Any


class RecordDisplay:
    """Gives a run tables and curves of its records; the plotting packages are imported on use."""

    def frame(self) -> Any:
        """Return the records as a pandas frame."""
        from undrift.report import notebook

        return notebook.frame(self)  # type: ignore[arg-type]

    def plot(self, metric: str = "accuracy", against: str = "round", **options: Any) -> Any:
        """Draw a curve of the records and return matplotlib's Axes."""
        from undrift.report import notebook

        return notebook.plot(self, metric, against, **options)  # type: ignore[arg-type]

    def show_progress(self) -> None:
        """Show a bar of the rounds while they are run."""
        from undrift.report import progress

        self._progress = progress.round_bar(self)

    def __repr__(self) -> str:
        from undrift.report import notebook

        return notebook.one_line(self)  # type: ignore[arg-type]

    def __rich__(self) -> Any:
        from undrift.report import notebook

        return notebook.rich_table(self)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        from undrift.report import notebook

        return notebook.html_table(self)  # type: ignore[arg-type]
