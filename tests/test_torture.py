"""`make torture` and `make fuzz` in a short form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_torture_in_short() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "torture/run.py"), "--short"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, nothing torn" in done.stdout
    assert "12  kills" in done.stdout
