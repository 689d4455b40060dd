"""A FAKE engine interpreter for `check`: answers a look-up task with the file that FAKE_RESULT names.

It proves nothing about the engine, only about the command around it. FAKE_REPORT names a file that gets what it saw.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path


def interpreter(directory: Path) -> Path:
    """An executable that is this Python, except when it is told to run a script: then it is the fake."""
    path = directory / "fake-python"
    python, fake = shlex.quote(sys.executable), shlex.quote(__file__)
    path.write_text(f'#!/bin/sh\n[ "$1" = -I ] && exec {python} "$@"\nexec {python} -S {fake} "$@"\n')
    path.chmod(0o755)
    return path


def main(job: Path, descriptor: int) -> None:
    os.write(descriptor, b'{"stage": "build the model"}\n')
    seen = {"job": json.loads(job.read_text()), "environment": dict(os.environ), "cwd": str(Path.cwd())}
    Path(os.environ["FAKE_REPORT"]).write_text(json.dumps(seen))
    print("a line of the engine's log")
    result = Path(os.environ["FAKE_RESULT"])
    if result.is_file():
        job.with_name("result.json").write_text(result.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[4]), int(sys.argv[5]))
