"""Which interpreter has the engine, and what a compile process may see of this machine's environment."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from model_cache.errors import UsageError

VARIABLE = "MODEL_CACHE_PYTHON"

_KEPT = ("PATH", "LD_LIBRARY_PATH")
"""What a compile process inherits. PATH because the engine asks for nvcc and ninja; nothing that it hashes."""

UNDISTURBED = {
    "DO_NOT_TRACK": "1",  # the engine tells its makers of every start, and reads all about this machine for that
    "HUMMING_DISABLE_PARALLEL_BUILD": "1",  # else the import of Humming builds its launcher in C++, in the background
}
"""Work that vLLM 0.33.0 does beside a start, and that no start here has a use for; in no key."""

_ASK_VERSION = "import sys; print('python', *sys.version_info[:2])"
_ASK_INSTALLED = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(name, version(name))
    except PackageNotFoundError:
        continue
    break
"""
_OLDEST = (3, 11)
"""What the compile process needs: -P, tomllib."""


def choose(engine: str, recipe_python: str | None) -> str:
    """The engine's interpreter: MODEL_CACHE_PYTHON, else the recipe's `python`, else this one if it has the engine.

    Args:
        engine: name of the engine's distribution, for example ``"vllm"``.
        recipe_python: the recipe's `python`.

    Raises:
        UsageError: if none is given and this interpreter has no such package, or if the one given does not run or is
            too old.
    """
    if recipe_python and not os.environ.get(VARIABLE):
        return _runnable(recipe_python, f"`python` = {recipe_python!r} of the recipe")
    python = _of_host(engine)
    if python is None:
        raise UsageError(
            f"No interpreter with {engine} is known: set {VARIABLE} to one (absolute path), or `python` in the recipe, "
            "or give artifacts compiled elsewhere (MODEL_CACHE_ARTIFACTS, or ./artifacts in the project)."
        )
    return python


def of_host(engine: str) -> str:
    """The engine's interpreter where no recipe can name one: MODEL_CACHE_PYTHON, else this one if it has the engine.

    Raises UsageError as `choose` does.
    """
    python = _of_host(engine)
    if python is None:
        raise UsageError(
            f"No interpreter with {engine} is known: set {VARIABLE} to one (absolute path), "
            "or install hatch-model-cache beside the engine."
        )
    return python


def _of_host(engine: str) -> str | None:
    given = os.environ.get(VARIABLE)
    if given:
        return _runnable(given, f"{VARIABLE}={given}")
    return sys.executable if is_here(engine) else None


def _runnable(python: str, source: str) -> str:
    if not Path(python).is_absolute():
        raise UsageError(f"{source} must be an absolute path: the build runs in another directory.")
    try:
        done = subprocess.run([python, "-I", "-c", _ASK_VERSION], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{source} cannot be run: {error}") from None
    answer = re.fullmatch(rb"python (\d+) (\d+)\n", done.stdout)
    if done.returncode or answer is None:
        raise UsageError(f"{source} is no Python interpreter (exit status {done.returncode}).")
    version = int(answer[1]), int(answer[2])
    if version < _OLDEST:
        raise UsageError(f"{source} is Python {version[0]}.{version[1]}; {_OLDEST[0]}.{_OLDEST[1]} or later is needed.")
    return python


def is_here(distribution: str) -> bool:
    """Whether a distribution is installed in this interpreter."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version(distribution))
    return False


def has(python: str, names: Sequence[str]) -> str | None:
    """The first of the distributions `names` that is installed in an interpreter; None if none is."""
    return _first(python, names)[0]


def require(python: str, engine: str, version: str) -> None:
    """Raise UsageError unless an interpreter has an engine in this version."""
    name, found = _first(python, [engine])
    if name is None or found.partition("+")[0] != version:
        there = f"{engine} {found}" if name else f"no {engine}"
        raise UsageError(f"the recipe asks for {engine}=={version}, {python} has {there}")


def engine_of_host(names: Sequence[str]) -> str:
    """The first of the engines `names` that is installed, with its public version: ``vllm==0.33.0``.

    Raises UsageError as `choose` does.
    """
    python = of_host(next(filter(is_here, names), names[0]))
    name, version = _first(python, names)
    if name is None:
        raise UsageError(f"{python} has no {' or '.join(names)}: set {VARIABLE} to an interpreter that has one.")
    return f"{name}=={version.partition('+')[0]}"


def _first(python: str, names: Sequence[str]) -> tuple[str | None, str]:
    done = subprocess.run([python, "-I", "-c", _ASK_INSTALLED, *names], capture_output=True, timeout=60, check=False)
    name, _, version = done.stdout.decode(errors="replace").strip().partition(" ")
    return (name, version) if name in names else (None, "")


def elsewhere() -> dict[str, str]:
    """This process's environment as an engine on another host may have it: without ``CI``.

    Every pipeline sets that for its own jobs, and torch 2.13.0 puts it into the key of whatever an engine compiles
    (``error_on_custom_op_aliasing`` of torch._functorch.config).
    """
    return {name: value for name, value in os.environ.items() if name != "CI"}


def scrubbed_environment(
    recipe_environment: Mapping[str, str], engine_environment: Mapping[str, str], scratch: Path
) -> dict[str, str]:
    """The whole environment of a compile process: the recipe's, what `_KEPT` names, and neutral places to write.

    Args:
        recipe_environment: what the serving host will set for the engine; it wins over everything else.
        engine_environment: where the engine is to keep its cache (``environment`` of its adapter).
        scratch: the process's own directory.
    """
    neutral = {
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "HF_HUB_OFFLINE": "1",  # the model is a local directory; its name is put into the key afterwards
        "MODEL_CACHE_DISABLE": "1",
        "CUDA_CACHE_DISABLE": "1",
        "PYTHONHASHSEED": "0",  # the order of sets shows in artifacts
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool of processes would not share the pretence; not in the key
        **UNDISTURBED,
    }
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **neutral, **engine_environment, **recipe_environment}
