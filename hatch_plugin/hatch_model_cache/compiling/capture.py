"""Artifacts that a real engine has left in a cache root, taken in the place of a compile.

The installed engine is asked for the keys of a recipe, as before a compile, and what lies under one of them is taken.
A key is a hash of all its factors, so an entry under it was made with just these. What is in no key stays unknown: the
engine may have run on another host, or with another driver, long ago. Nothing is unpickled.
"""

from __future__ import annotations

import functools
import os
import pickletools
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.engines import vllm_piecewise
from hatch_model_cache.compiling.compiler import Way
from hatch_model_cache.compiling.cubins import kernels
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import CompileError, NotFoundError, UsageError
from model_cache.store import state
from model_cache.store.files import human
from model_cache.store.root import Root
from model_cache.wheel.names import printable

NEEDED = ("architectures", "artifacts", "engine", "factors", "hints", "measured", "models", "ranks")
"""What the result of a process that describes artifacts must hold."""

ENTRIES = "torch_compile_cache/torch_aot_compile"
"""Where vLLM's AOT entries lie below its cache root (`compile.engines.vllm_start.AOT`)."""

_FILE = "model"
_SHOWN = 20
"""Of many entries in a cache root, how many are listed."""

_BESIDE = frozenset({"inductor_cache"})
"""Directories that the engine makes in an entry at every start; with mega artifacts nothing in there is needed."""


def capture(recipe: Recipe, root: Path) -> Way:
    """The way to take the artifacts of `recipe` from the cache root at `root`.

    Raises UsageError for an engine whose cache cannot be captured, NotFoundError where no engine has left anything.
    """
    if recipe.engine_name != "vllm":
        raise UsageError(
            f"what {recipe.engine_name} leaves cannot be captured: it is native code, and nothing in the cache root "
            "says for which CPU; compile it on such a machine"
        )
    if recipe.components:
        raise UsageError("of a cache root only compiled models are captured: leave `components` away, or compile")
    if not entries(root):
        raise NotFoundError(f"{printable(str(root))}: no engine has left a compiled model there")
    return Way("describe", "capture", NEEDED, functools.partial(_taken, root))


def entries(root: Path) -> dict[str, str]:
    """Every entry of a cache root, by key: its ranks and its size, in words."""
    place = root / ENTRIES
    try:
        with os.scandir(place) as found:
            names = sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except OSError:
        return {}
    return {name: _words(place / name) for name in names if not name.startswith(".")}


def _words(entry: Path) -> str:
    models = sorted(entry.glob(f"rank_*/{_FILE}"))
    ranks = ", ".join(path.parent.name.removeprefix("rank_") for path in models) or "no rank"
    return f"{ranks}; {human(sum(path.lstat().st_size for path in models))}"


def _taken(root: Path, result: dict[str, Any], target: str, directory: Path) -> dict[str, Any]:
    """The result of a compile of one rank, from that of a process that described it, and the files of the engine.

    Raises CompileError with everything that is wrong with them.
    """
    if any(artifact["component"] == vllm_piecewise.COMPONENT for artifact in result["artifacts"]):
        raise CompileError(
            f"{target}: what an engine leaves with VLLM_USE_AOT_COMPILE=0 is not captured, since nothing in it names "
            "the version of Python; compile it, which needs no GPU"
        )
    problems: list[str] = []
    ranks, python = result["ranks"], result["engine"]["python"]
    artifacts = [_artifact(root, artifact, ranks, python, directory, problems) for artifact in result["artifacts"]]
    if problems:
        raise CompileError(f"{target}: what lies in {printable(str(root))} cannot be captured:", problems)
    found = [kernel for artifact in artifacts for kernel in kernels(Path(artifact["path"]))]
    return {
        **result,
        "artifacts": artifacts,
        "host_answers": {},  # what that host answered, and what was in no key, nobody has noted
        "unkeyed": {},
        "saved": len(artifacts),
        "parts": len(found),
        "kernels": found,
        "regions": [],
        "stand_ins": [],
    }


def _artifact(
    root: Path, artifact: Mapping[str, Any], ranks: int, python: str, directory: Path, problems: list[str]
) -> dict[str, Any]:
    """An artifact, its file copied to where a compile would have left it. Adds to `problems`.

    ranks: how many look for it; python: the engine's, which no key holds.
    """
    rank = Path(artifact["path"]).parent.name
    keys = list(dict.fromkeys(key["directory"] for key in artifact["keys"]))
    # a Hub id has two keys, and an engine may have left something under each: what is whole comes first
    there = [key for key in keys if (root / key).is_dir()]
    whole = [key for key in there if len([*(root / key).glob(f"rank_*/{_FILE}")]) >= ranks]
    found = next(iter([*whole, *there]), None)
    if found is None:
        problems.append(_nothing(root, artifact["prefix"], keys))
        return dict(artifact)
    wrong = list(_wrong(root, found, rank))
    problems += [f"{artifact['prefix']}: {problem}" for problem in wrong]
    path = directory / "cache" / found / rank / _FILE
    if not wrong:
        path.parent.mkdir(parents=True, exist_ok=True)
        _copy(root / found / rank / _FILE, path, problems)
        if (made_by := python_of(path.read_bytes())) != python:
            who = f"by Python {made_by}" if made_by else "by no Python that it names"
            problems.append(f"{artifact['prefix']}: {found}/{rank} was compiled {who}, the engine here has {python}")
    return {**artifact, "path": str(path)}


def _nothing(root: Path, prefix: str, keys: Sequence[str]) -> str:
    wanted = " or ".join(key.rpartition("/")[2] for key in keys)
    found = [f"{key} ({words})" for key, words in entries(root).items()]
    there = "; ".join(found[:_SHOWN]) + (f"; and {len(found) - _SHOWN} more" if found[_SHOWN:] else "")
    return (
        f"{prefix}: with this command and environment the engine looks for {wanted}. There is {there}: give the "
        "command and the variables (--env) that it was started with"
    )


def _wrong(root: Path, entry: str, rank: str) -> Iterator[str]:
    """Why an entry is not what an engine leaves when it has finished."""
    with Root.open(str(root)) as opened:
        states, _ = state.load_all(opened)
    owner = next((one.name for one in states if (ours := one.entry(entry)) and ours.ours), None)
    if owner:
        yield f"{entry} was deployed there from {owner}: that is a wheel already"
        return
    ranks = sorted(name for name in os.listdir(root / entry) if name not in _BESIDE)
    if rank not in ranks:
        yield f"{entry} is partial: it has no {rank} ({', '.join(ranks) or 'nothing'})"
        return
    for path in (root / entry / rank, *sorted((root / entry / rank).iterdir())):
        shown, mode = printable(str(path.relative_to(root))), path.lstat().st_mode
        if stat.S_ISLNK(mode):
            yield f"{shown} is a link"
        elif path.name.endswith(".tmp"):
            yield f"{shown} was left by an engine that is still writing, or was ended: start it again"
        elif path.name not in (rank, _FILE):
            yield f"{shown} is no file of this engine"
    if not (root / entry / rank / _FILE).is_file():
        yield f"{entry} is partial: {rank} has no {_FILE}"


def _copy(source: Path, destination: Path, problems: list[str]) -> None:
    """Copy a file that the engine replaces in one step; noticed if somebody else writes to it."""
    before = source.lstat()
    shutil.copyfile(source, destination, follow_symlinks=False)
    after = source.lstat()
    if (before.st_mtime_ns, before.st_size, before.st_ino) != (after.st_mtime_ns, after.st_size, after.st_ino):
        problems.append(f"{printable(str(source))} changes while it is read: capture when the engine is up")


def python_of(data: bytes) -> str | None:
    """The exact Python that has compiled an artifact, as torch notes it there for its own check when it loads it.

    ``torch._dynamo.package.SystemInfo`` (torch 2.14.0) is pickled with the artifact: the value after the name of its
    field is read from the opcodes. None if there is none.
    """
    memo: list[object] = []
    value: object = None
    named = False
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "MEMOIZE":
                memo.append(value)
                continue
            value = memo[int(str(argument))] if opcode.name in ("BINGET", "LONG_BINGET") else argument
            if named:
                return value if isinstance(value, str) else None
            named = value == "python_version"
    except (ValueError, IndexError, TypeError):  # no pickle
        return None
    return None
