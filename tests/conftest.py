"""Settings and fixtures of all tests; a worker has one torch thread, since tensors are tiny."""

import gc
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
# Rules of thumb decide how clients are run, not what else this machine is doing.
os.environ.setdefault("UNDRIFT_CALIBRATE", "0")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: a quarter of the time would go into finding none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long the cases of a wide table that its predicate does not choose for every day."""
    for item in items:
        marker = item.get_closest_marker("wide")
        if marker and not marker.kwargs["daily"](item.callspec.params):
            item.add_marker(pytest.mark.long)


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command with its arguments."""
    from tests.support.commands import undrift

    return lambda *arguments: undrift(capsys, monkeypatch, *arguments)


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the data of this machine's user, packages and checkout; make a cache of its own."""
    from undrift.data import places

    monkeypatch.setenv("UNDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNDRIFT_DATA", raising=False)
    monkeypatch.setattr(places, "DEBIAN", tmp_path / "no-package")
    monkeypatch.setattr(places, "CHECKOUT", tmp_path / "no-checkout")
    for variable in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
