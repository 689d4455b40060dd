"""`uv pip`: what pip does, seconds faster, which counts a hundred times in a row."""

from __future__ import annotations

import subprocess

from uv import find_uv_bin


def pip(command: str, *arguments: str) -> None:
    """`uv pip <command>`; the environment is named in the arguments."""
    subprocess.run([find_uv_bin(), "pip", command, "--quiet", *arguments], check=True)
