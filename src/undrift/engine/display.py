"""`RecordDisplay` shows a run in a terminal and in a notebook, and knows other libraries' names."""

from __future__ import annotations

from typing import Any

_OTHER_NAMES = {  # what other libraries call it -> what it is here
    "fit train run start execute": "a run is an iterator: say for record in run: print(record)",
    "step": "next(run) trains for a round",
    "history results log logs losses accuracies": "run.records has a record for each round",
    "evaluate test score metrics": "run.record has loss and metrics of the last test",
    "save save_model": "run.export('model.safetensors') writes the model",
    "parameters state_dict weights": "run.model is the network",
}


class RecordDisplay:
    """Gives a run tables and curves of its records; the plotting packages are imported on use."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property that has failed, which tells its own error
            return object.__getattribute__(self, name)
        remedy = next((text for names, text in _OTHER_NAMES.items() if name in names.split()), "")
        kind, clause = type(self).__name__, remedy and f"; {remedy}"
        raise AttributeError(f"{kind!r} object has no attribute {name!r}{clause}")

    def frame(self) -> Any:
        """Return the records as a pandas frame."""
        from undrift.report import notebook

        return notebook.frame(self)

    def plot(self, metric: str = "accuracy", against: str = "round", **options: Any) -> Any:
        """Draw a curve of the records and return matplotlib's Axes."""
        from undrift.report import notebook

        return notebook.plot(self, metric, against, **options)

    def show_progress(self) -> None:
        """Show a bar of the rounds while they are run."""
        from undrift.report import progress

        self._progress = progress.round_bar(self)

    def __repr__(self) -> str:
        from undrift.report import notebook

        return notebook.one_line(self)

    def __rich__(self) -> Any:
        from undrift.report import notebook

        return notebook.rich_table(self)

    def _repr_html_(self) -> str:
        from undrift.report import notebook

        return notebook.html_table(self)
