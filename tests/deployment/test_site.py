"""A site's operator hears in a sentence what does not fit, and what nobody can check."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.hospitals import experiment
from undrift.deployment import site as module
from undrift.deployment.accounts import Account
from undrift.deployment.environment import FlowerEnvironment
from undrift.deployment.site import SiteSettings, check_site
from undrift.errors import UndriftError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as others")


def settings(folder: Path, **changes: Any) -> SiteSettings:
    for name in ("north.key", "ca.crt", "patients.csv"):
        (folder / name).touch(mode=0o600)
    usual = SiteSettings(
        name="north",
        experiment=folder / "experiment.toml",
        data=str(folder / "patients.csv"),
        key=folder / "north.key",
        authority=folder / "ca.crt",
        address="localhost:9092",
        state=folder / "state",
        logs=folder / "logs",
    )
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps >= 1, got 0; leave it out to do the work of the experiment"),
        ({"data": "of-nobody.csv"}, "got 'of-nobody.csv'; name the file that has this site's rows"),
        ({"key": Path("of-nobody.key")}, "`undrift federation init` writes it"),
        ({"name": "hill"}, "a key's file is named after its site"),
    ],
    ids=str,
)
def test_what_a_site_lacks_is_said_with_the_remedy(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, UndriftError), match=re.escape(words)):
        check_site(settings(tmp_path, **changes), experiment(tmp_path))
    check_site(settings(tmp_path), experiment(tmp_path))


@AS_ROOT
@pytest.mark.parametrize("user", ["root", "daemon"])
def test_code_that_gives_data_runs_as_its_owner_and_what_it_reads_is_said_to_be_unchecked(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Account, "can_run", lambda *each: True)
    owner, said, flower = Account.named(user), list[str](), FlowerEnvironment(tmp_path)
    (tmp_path / "mine.py").write_text("def load(): ...\n")
    owner.own(tmp_path / "mine.py", 0o600)
    code = settings(tmp_path, data=f"{tmp_path}/mine.py:load")
    holder, relay = module._accounts(code, flower, said.append)
    assert (holder, relay) == (owner, Account.named("nobody"))
    assert len(said) == 1
    assert "whether the user nobody, who runs what Flower brings, can read" in said[0]
    assert f"It is run by the user {user}; --user names another." in said[0]
    holder, _ = module._accounts(replace(code, user="bin"), flower, said.append)
    assert holder == Account.named("bin")
    said.clear()
    module._accounts(settings(tmp_path), flower, said.append)
    assert said == [], "a table is checked"
