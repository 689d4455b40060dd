"""Commands that install a wheel and nothing else: the ones told to users, and the one run here."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from model_cache.errors import ModelCacheError, UsageError
from model_cache.wheel.names import printable

from .hub_address import HubAddress

__all__ = ["command", "install", "pip_line", "pull_line"]


def pip_line(name: str, url: str, sha256: str) -> str:
    """The command with which pip or uv installs the file at `url`, and refuses one with another content.

    No name is looked up in any index: the only dependency, hatch-model-cache, has to be installed.
    """
    return f"pip install --no-deps {shlex.quote(f'{name} @ {url}#sha256={sha256}')}"


def pull_line(pinned: HubAddress) -> str:
    """The command that installs the wheel of one commit on the Hub."""
    return f"model-cache pull {pinned} --install"


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
