"""Asker: the dynamic linker. The engine's extension modules depend on libcuda.so.1; nothing in it is called."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

SONAME = "libcuda.so.1"


def install(directory: Path) -> None:
    """Load a library of that SONAME, built from ``libcuda.c``, so that the extension modules can be loaded.

    A loaded library cannot be taken away again; it stays after the pretence ends.

    Args:
        directory: where the library is built.

    Raises:
        RuntimeError: if there is no C compiler or it fails.
    """
    load(Path(__file__).with_name("libcuda.c"), directory / SONAME)


def load(source: Path, library: Path, *options: str) -> None:
    """Build a library with the C compiler, for what is loaded after it to bind to.

    Raises:
        RuntimeError: if there is no C compiler or it fails.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError(f"no C compiler (cc, gcc or clang) on PATH: it builds the stand-in of {source.stem}")
    command = [
        compiler,
        "-w",
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{library.name}",
        *options,
        "-o",
        str(library),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"building the stand-in of {source.stem} failed: {done.stderr.strip()[-300:]}")
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
