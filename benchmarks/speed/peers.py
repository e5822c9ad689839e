"""One environment for each peer, so that the project's own stays clean.

    python -m benchmarks.speed.peers build [pfl flower fedlab fedjax]
    python -m benchmarks.speed.peers list

Environments go to benchmarks/speed/.envs. torch is pinned by the repository's constraints.txt; an
environment into which CUDA libraries came all the same is removed again. What fails is said, and
the others are built. pip's own settings apply, e.g. PIP_EXTRA_INDEX_URL for torch's CPU builds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".envs"
CONSTRAINTS = HERE.parents[1] / "constraints.txt"

# fedlab asks for torchvision, whose requirement would bring a CUDA build of torch, and only its
# own copies of data sets use it. Importing it is enough for this stand-in.
TORCHVISION = '''\
"""Stands in for torchvision, which fedlab imports for its data sets, unused here."""
import sys
import types


class _Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return object


for _name in ("transforms", "transforms.functional", "datasets", "datasets.utils", "models"):
    _module = _Anything(f"{__name__}.{_name}")
    _module.__path__ = []
    sys.modules[f"{__name__}.{_name}"] = _module
transforms, datasets, models = (sys.modules[f"{__name__}.{n}"] for n in
                                ("transforms", "datasets", "models"))
'''
PYNVML = '"""Stands in for pynvml: there is no GPU to ask."""\n'


@dataclass(frozen=True)
class Peer:
    distribution: str  # whose version is reported
    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()  # installed without what they ask for
    stubs: tuple[tuple[str, str], ...] = ()  # modules that stand in for others


PEERS: dict[str, Peer] = {
    "pfl": Peer("pfl", ("pfl[pytorch]==0.6.0", "torch")),
    "flower": Peer("flwr", ("flwr[simulation]==1.41.0", "torch")),
    "fedlab": Peer(
        "fedlab",
        ("torch", "numpy", "pandas", "tqdm", "scikit-learn", "munch", "pillow"),
        bare=("fedlab==1.3.0",),
        stubs=(("torchvision", TORCHVISION), ("pynvml", PYNVML)),
    ),
    "fedjax": Peer("fedjax", ("fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2")),
}


class BuildError(Exception):
    """Says in one sentence why an environment could not be made."""


def python_of(name: str) -> Path:
    return ENVIRONMENTS / name / "bin" / "python"


def is_built(name: str) -> bool:
    return (ENVIRONMENTS / name / ".ready").exists()


def build(name: str) -> str:
    """Make the environment anew and return the peer's version."""
    peer, place = PEERS[name], ENVIRONMENTS / name
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    if peer.packages:
        _pip(name, "install", "--quiet", "-c", str(CONSTRAINTS), *peer.packages)
    if peer.bare:
        _pip(name, "install", "--quiet", "--no-deps", "-c", str(CONSTRAINTS), *peer.bare)
    found = _versions(name)
    cuda = sorted(package for package in found if "nvidia" in package)
    if cuda:
        shutil.rmtree(place)
        raise BuildError(f"CUDA libraries were installed ({', '.join(cuda)}); see constraints.txt.")
    packages = next((place / "lib").glob("python*/site-packages"))
    for module, text in peer.stubs:
        (packages / module).mkdir()
        (packages / module / "__init__.py").write_text(text)
    (place / ".ready").write_text(json.dumps(found))
    return found[peer.distribution]


def _versions(name: str) -> dict[str, str]:
    """Return what is installed for a peer, in lower case."""
    shown = _pip(name, "list", "--format=json")
    return {each["name"].lower(): each["version"] for each in json.loads(shown)}


def installed(name: str) -> dict[str, str]:
    """Return the versions with which an environment was built."""
    return dict(json.loads((ENVIRONMENTS / name / ".ready").read_text()))


def _pip(name: str, *arguments: str) -> str:
    command = [str(python_of(name)), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise BuildError(" ".join(words) or done.stderr.strip()[-500:])
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("build", "list"))
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(PEERS))
    parser.add_argument("--again", action="store_true", help="also those that are there")
    options = parser.parse_intermixed_args(arguments)
    unknown = sorted(set(options.names) - set(PEERS))
    if unknown:
        parser.error(f"peers are {', '.join(PEERS)}, got {', '.join(unknown)}")
    failed = False
    for name in options.names or PEERS:
        if options.command == "list" or (is_built(name) and not options.again):
            there = is_built(name)
            print(f"{name}: {installed(name)[PEERS[name].distribution] if there else 'not built'}")
            continue
        print(f"{name}: building {python_of(name).parents[1]}", flush=True)
        try:
            print(f"{name}: {build(name)}", flush=True)
        except (BuildError, OSError, KeyError, subprocess.SubprocessError) as error:
            failed = True
            print(f"{name}: failed. {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
