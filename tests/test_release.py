"""What is released: one version, a complete sdist, a wheel that runs where nothing else is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

import pytest
import yaml

import undrift
from tests.support.system import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())


def test_there_is_one_version() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == undrift.__version__ == CITATION["version"]
    assert "version" in PROJECT["dynamic"]  # which hatch reads from `__version__`


def test_classifiers_say_what_is_tested() -> None:
    named = {each.rsplit(" ", 1)[1] for each in PROJECT["classifiers"] if "Python :: 3." in each}
    assert named == set(WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"])


def test_the_documents_are_cited() -> None:
    titles = " ".join(each["title"] for each in CITATION["references"])
    for words in ("FedSpeed", "Accelerated Client Gradient", "Gradient-wise", "NET-FLEET"):
        assert words in titles
    assert all(each["authors"] and each["year"] for each in CITATION["references"])


def targets_of(commands: list[str]) -> list[str]:
    """Return the targets that lines of a shell make, in order."""
    made = [line.split()[1:] for line in commands if line.startswith("make ")]
    return [target for targets in made for target in targets]


def test_public_ci_calls_what_the_checkout_calls() -> None:
    """The same targets of the Makefile in the same order, none more and none less."""
    steps = [each["run"] for each in WORKFLOW["jobs"]["test"]["steps"] if "run" in each]
    called = targets_of(steps)
    assert called == targets_of((ROOT / ".ci" / "run").read_text().splitlines())
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"test", "test-federation", "release"} <= set(called) <= set(targets)


def test_every_step_of_public_ci_installs_the_cpu_build() -> None:
    """An index that one step alone has would leave the others with gigabytes of CUDA."""
    job = WORKFLOW["jobs"]["test"]
    assert "PIP_EXTRA_INDEX_URL" in job["env"]
    assert [each for each in job["steps"] if "env" in each] == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist and a wheel that was built from it."""
    pytest.importorskip("build", reason="needs the extra `release`")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long
def test_the_sdist_has_every_file_of_the_checkout(built: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert set(listed) - held == set()


@pytest.mark.long
def test_the_index_page_has_no_link_that_leads_nowhere(built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = [each for each in wheel.namelist() if each.endswith("/METADATA")]
        page = message_from_string(wheel.read(name).decode()).get_payload()
    assert len(str(page)) > 1000
    assert re.findall(r"\]\((?!https?:)[^)]*\)", str(page)) == []


@pytest.fixture
def fresh() -> Iterator[Path]:
    """Yield a new environment, which is removed afterwards because it has most of a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="undrift-") as folder:
        venv.create(folder, with_pip=True)
        yield Path(folder)


@pytest.mark.long
def test_the_wheel_runs_in_an_environment_of_its_own(
    built: Path, fresh: Path, tmp_path: Path
) -> None:
    """With what pip installs for it; the package itself is nowhere but in the wheel."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["UNDRIFT_CACHE"] = str(tmp_path / "cache")

    def call(program: str, *words: object) -> subprocess.CompletedProcess[str]:
        command = [str(fresh / "bin" / program), *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=1200
        )

    if call("pip", "download", "--no-deps", "--dest", tmp_path, "filelock").returncode:
        pytest.skip("pip reaches no index, not even for a small package")
    (path,) = built.glob("*.whl")
    done = call("pip", "install", "--no-compile", "-c", ROOT / "constraints.txt", path)
    assert done.returncode == 0, done.stdout + done.stderr
    installed = call("pip", "list", "--format=freeze").stdout
    assert "torch==" in installed
    assert re.findall("^nvidia.*", installed, re.MULTILINE) == []  # see constraints.txt
    done = call("undrift", "run", "fedspeed", "--rounds", 1, "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])
    where = call("python", "-c", "import undrift; print(undrift.__file__, undrift.__version__)")
    assert where.stdout.startswith(str(fresh))
    assert where.stdout.split()[-1] == undrift.__version__
