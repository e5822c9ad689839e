"""The C++ of the convolutions under sanitizers, and with the vectors of other processors."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from undrift.gradients.winograd.library import source

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
DRIVER = Path(__file__).parent / "winograd_driver.cpp"
INTEL = platform.machine() in ("x86_64", "AMD64")
STRICT = ("-O1", "-g", "-fno-sanitize-recover=all")
FLAGS = {
    "memory and undefined behaviour": ("-march=native", "-fsanitize=address,undefined", *STRICT),
    "races": ("-march=native", "-fsanitize=thread", *STRICT),
    "vectors of 4": ("-O2",),  # SSE2 on Intel's machines, NEON on ARM's
    "vectors of 8 without multiply-add": ("-O2", "-mavx"),
}


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("kind", FLAGS)
def test_convolutions_are_right(kind: str, tmp_path: Path) -> None:
    if "-mavx" in FLAGS[kind] and not INTEL:
        pytest.skip("another processor")
    text, program = tmp_path / "driver.cpp", tmp_path / "driver"
    text.write_text(source() + DRIVER.read_text())
    command = [COMPILER, "-std=c++17", "-pthread", "-w", *FLAGS[kind], str(text), "-o", program]
    subprocess.run(command, check=True, timeout=900)
    ran = subprocess.run([program], capture_output=True, text=True, timeout=900, check=False)
    assert (ran.returncode, ran.stdout) == (0, "right\n"), ran.stdout + ran.stderr
