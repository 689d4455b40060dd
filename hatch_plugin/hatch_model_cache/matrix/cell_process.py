"""One cell, in a process of its own: compile, then pack. ``python -m hatch_model_cache.matrix.cell_process JOB``.

Tells on stdout, one JSON object a line: ``stage`` and ``kernel`` as they come, then ``wheel`` (a path) or ``error``.
What is meant for people goes to stderr, which is the cell's log.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatch_model_cache.compiling import compiler
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe.file import load_recipe
from model_cache.errors import CompileError, ModelCacheError

ARTIFACTS_VARIABLE = "MODEL_CACHE_ARTIFACTS"
PROJECT, ARTIFACTS, DIST = "project", "artifacts", "dist"
"""What lies in a cell's directory: the recipe project, the compile's result (if there is one), the wheel."""


class _Told:
    """A progress that tells on stdout."""

    def stage(self, job: str, name: str) -> None:
        _tell({"stage": f"{job}: {name}"})

    def kernel(self, job: str, name: str) -> None:  # noqa: ARG002
        _tell({"kernel": name})


def main(directory: Path) -> int:
    """Build the project in `directory`; the exit code is that of the error, 0 without one."""
    # it is how we are told to end, also below a shell's background job, which ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _be_interrupted_with_parent()
    try:
        wheel = build(directory)
    except ModelCacheError as error:
        _tell({"error": error.as_dict()})
        return error.exit_code
    except KeyboardInterrupt:
        _tell({"error": ModelCacheError("interrupted").as_dict()})
        return 130
    _tell({"wheel": str(wheel)})
    return 0


def _be_interrupted_with_parent() -> None:
    """Have the kernel interrupt this process when the thread that started it is gone: a builder that is killed can tell
    nobody, and the next one must not find us at work in the same directory."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)


def build(directory: Path) -> Path:
    """Compile, unless that is done already, and pack. Returns the wheel. Raises ModelCacheError."""
    recipe = load_recipe(directory / PROJECT)
    compiled = directory / ARTIFACTS
    if not (compiled / artifacts.FILE_NAME).exists():
        compiler.compile_recipe(recipe, compiled, progress=_Told())
    _tell({"stage": "pack"})
    out = directory / DIST
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    environment = {**os.environ, ARTIFACTS_VARIABLE: str(compiled)}
    done = subprocess.run(
        command,
        cwd=directory / PROJECT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    sys.stderr.write(done.stdout)
    if done.returncode:
        raise CompileError(f"the wheel could not be packed: {_last_words(done.stdout)}")
    [wheel] = out.glob("*.whl")
    return wheel


def _last_words(output: str) -> str:
    """What hatchling said at its end, in one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-500:] or "hatchling said nothing"


def _tell(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
