"""Put a verified wheel into the Python environment that runs this, with the installer that it has."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from model_cache.errors import ModelCacheError, UsageError
from model_cache.names import printable

__all__ = ["command", "install"]


def command(wheel: Path) -> Sequence[str]:
    """The installer's command line. Nothing but this file is installed, and no index is asked.

    The wheel's only dependency is this distribution, which is here. What is installed under its name is replaced, also
    at the same version. Raises UsageError when there is neither pip nor uv.
    """
    options = ("--no-deps", "--no-index", str(wheel))
    if importlib.util.find_spec("pip"):
        quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
        return (sys.executable, "-m", "pip", "install", *quiet, "--force-reinstall", *options)
    if uv := shutil.which("uv"):
        return (uv, "pip", "install", "--quiet", "--python", sys.executable, "--reinstall", *options)
    raise UsageError("this Python environment has no pip, and there is no uv: use --out, and install the file yourself")


def install(wheel: Path) -> None:
    """Install the file `wheel`. Raises ModelCacheError with the installer's last line when it fails."""
    done = subprocess.run(command(wheel), capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no output"]
        raise ModelCacheError(f"{wheel.name} could not be installed: {printable(lines[-1]):.300}")
