"""The engine's look-ups, watched: what is missing is perhaps adopted, and what came of each is told and recorded.

vLLM looks for an artifact in one function, ``vllm.compilation.decorators._try_load_aot_compiled_fn(model, path)`` (vllm
0.33.0), which is wrapped when the engine has imported that module (`on_import`). The wrapper returns what the engine's
function returns and raises what it raises.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from model_cache.engine import lookups, mends, model_tag
from model_cache.engine.lookups import LookUp
from model_cache.engine.nearest import Nearest
from model_cache.errors import ModelCacheError
from model_cache.store import state
from model_cache.store.root import Root
from model_cache.store.state import State

FUNCTION = "_try_load_aot_compiled_fn"


class Say(Protocol):
    """Writes one line to the engine's log."""

    def __call__(self, message: str, *, alarm: bool = False) -> None: ...


def wrap(module: ModuleType, root_path: str, say: Say) -> None:
    """Watch every look-up that `module` (`on_import.MODULE`) will make, in the cache root at `root_path`."""
    original: Callable[..., Any] | None = getattr(module, FUNCTION, None)
    if original is None or getattr(original, "__code__", None) is None or original.__code__.co_argcount != 2:
        say(f"this engine has no {FUNCTION}(model, path): look-ups are not recorded, and nothing is adopted")
        return
    if getattr(original, "_recorded", False):
        return

    model_tag.keep_all(module)

    def recorded(model: Any, path: Any) -> Any:
        begun, before = time.monotonic(), _loaded()
        nearest = _met(model, str(path), root_path, say)
        loaded = None
        try:
            loaded = original(model, path)
            return loaded
        finally:
            # whatever goes wrong here, the engine gets what its own function gave
            with suppress(Exception):
                seconds = time.monotonic() - begun
                parts = _parts(before, _loaded()) if loaded is not None else 0
                *_, key, rank, _ = Path(str(path)).parts
                where = Where(model_tag.of(model) or "model", rank.removeprefix("rank_"), key, str(path))
                note(root_path, model, where, nearest, loaded is not None, parts, seconds, say)

    vars(recorded)["_recorded"] = True
    setattr(module, FUNCTION, recorded)


def _met(model: Any, path: str, root_path: str, say: Say) -> Nearest:
    """What comes nearest to a look-up that will find nothing, which may be there afterwards; never an error."""
    try:
        if os.path.exists(path):  # noqa: PTH110 - as the engine asks, False where it may not look
            return Nearest()
        from model_cache.engine import adoption

        return adoption.meet(model, path, root_path)
    except Exception as error:
        with suppress(Exception):
            say(f"a miss could not be explained: {type(error).__name__}: {error}", alarm=True)
        return Nearest()


def _loaded() -> tuple[int, int]:
    """What the process has loaded: compiled parts by the engine's own counter (vllm 0.33.0,
    vllm/compilation/counter.py), and modules of generated code (torch 2.13.0, torch/_inductor/codecache.py,
    `PyCodeCache`)."""
    counter = getattr(sys.modules.get("vllm.compilation.counter"), "compilation_counter", None)
    code = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    return int(getattr(counter, "num_compiled_artifacts_loaded", 0)), len(getattr(code, "modules", ()))


def _parts(before: tuple[int, int], after: tuple[int, int]) -> int:
    """Compiled parts loaded in between. On CPUs vLLM counts none; there each compiled graph is one module of code."""
    return after[0] - before[0] or after[1] - before[1]


@dataclass(frozen=True)
class Where:
    """What was looked for: which compiled model, for which rank, by which key; path: of the artifact, if it is one."""

    prefix: str
    rank: str
    key: str
    path: str = ""


def note(
    root_path: str, model: Any, where: Where, nearest: Nearest, hit: bool, parts: int, seconds: float, say: Say
) -> None:
    """Record a look-up and tell of it; what goes wrong is told.

    model: what has the engine's `vllm_config`; the rest as in `LookUp`.
    """
    try:
        _note(root_path, model, where, nearest, hit, parts, seconds, say)
    except Exception as error:
        say(f"a look-up could not be recorded: {type(error).__name__}: {error}", alarm=True)


def _note(
    root_path: str, model: Any, where: Where, nearest: Nearest, hit: bool, parts: int, seconds: float, say: Say
) -> None:
    with Root.open(root_path, create=True) as root:
        deployed, adopted = _origin(root, lookups.directory(where.key))
        found = LookUp(
            time=round(time.time(), 3),
            pid=os.getpid(),
            prefix=where.prefix,
            rank=where.rank,
            key=where.key,
            hit=hit,
            parts=parts,
            seconds=round(seconds, 3),
            wheel=deployed.name if deployed else "",
            mended=hit and where.path in mends.mended_paths,
            adopted=adopted,
            nearest="" if hit else nearest.wheel,
            differences=() if hit else nearest.differences,
            reason=nearest.reason,
            unsafe=_objection(model, deployed, say) if hit and deployed else "",
        )
        _tell(found, ", ".join(deployed.targets) if deployed else "", nearest, say)
        lookups.append(root, found)


def _objection(model: Any, deployed: State, say: Say) -> str:
    """What speaks against what was loaded of a wheel; never an error."""
    try:
        from model_cache.engine import misfit

        return misfit.objection(model, deployed)
    except Exception as error:
        say(f"a hit could not be compared: {type(error).__name__}: {error}", alarm=True)
        return ""


def _tell(found: LookUp, target: str, nearest: Nearest, say: Say) -> None:
    what = f"{found.prefix} rank {found.rank}"
    if found.hit and not found.parts:
        say(f"hit {what}, but it holds no compiled part: the model runs uncompiled", alarm=True)
    elif found.hit:
        origin = f"built for {target}" if target else "not from a wheel"
        how, origin = ("adopted", f"{origin}, in {found.wheel}") if found.adopted else ("hit", origin)
        why = f": {found.reason}" if found.adopted and found.reason else ""
        unsafe = f"; unsafe: {found.unsafe}" if found.unsafe else ""
        say(f"{how} {what} in {found.seconds:.1f} s ({origin}){why}{unsafe}", alarm=bool(unsafe))
    elif found.wheel:
        say(f"miss {what}: what {found.wheel} has for it could not be loaded; the line before says why", alarm=True)
    else:
        why = nearest.line() or f"no wheel has key {found.key[:12]}…"
        say(f"miss {what}: {why}; `model-cache check` says more", alarm=True)


def _origin(root: Root, directory: str) -> tuple[State | None, bool]:
    """The deployed wheel that has this entry, and whether it was adopted."""
    for name in state.names(root):
        with suppress(ModelCacheError):
            deployed = state.load(root, name)
            entry = deployed.entry(directory) if deployed else None
            if deployed and entry and entry.ours:
                return deployed, bool(entry.adopted)
    return None, False
