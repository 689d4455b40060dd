"""Where the result of a compile goes: an artifact directory, a cache root, or both."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_model_cache.compiling import capture as captured
from hatch_model_cache.compiling import compiler
from hatch_model_cache.compiling import native as natively
from hatch_model_cache.compiling.compiler import CROSS, Way
from hatch_model_cache.compiling.overlap import Bounds
from hatch_model_cache.compiling.progress import Progress
from hatch_model_cache.packing import artifacts
from hatch_model_cache.packing.layout import lay_out
from hatch_model_cache.packing.pack import pack
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import NotFoundError, NotTrustedError, UsageError
from model_cache.machine import cpu
from model_cache.machine.host import Gpus, Hardware, Host, probe_gpus
from model_cache.origin.trust import Trust
from model_cache.store import files, location, place
from model_cache.store.deploy import READ_ONLY, deploy
from model_cache.store.plan import OccupiedError
from model_cache.store.root import Root
from model_cache.wheel.manifest import Engine, Manifest

if TYPE_CHECKING:
    from model_cache.store.deploy import Outcome

VERSION = "0"
"""Of what is compiled straight into a cache root: below that of every wheel."""


@dataclass(frozen=True)
class Delivered:
    """What was compiled.

    Attributes:
        contents: what a manifest would say of it, under a provisional name.
        artifacts: the artifact directory; None if none was to be left.
        root: the cache root that it was put into, or None.
        outcomes: what the deploys into it did, one for each target that this host may have.
    """

    contents: Manifest
    artifacts: Path | None
    root: str | None
    outcomes: tuple[Outcome, ...]


def deliver(
    recipe: Recipe,
    *,
    out: Path | None,
    root: str | None,
    way: Way = CROSS,
    bounds: Bounds | None = None,
    progress: Progress | None = None,
) -> Delivered:
    """Compile a recipe and put the result where it is wanted.

    Args:
        recipe: what to compile.
        out: the artifact directory to make; None if nobody wants one.
        root: a cache root to put the result into, by the same transaction as a wheel's deploy.
        way: how the artifacts come about.
        bounds: what the compile may take beside other work.
        progress: told of stages and kernels.

    Raises:
        UsageError, CompileError: as `compiler.compile_recipe`.
        ModelCacheError: as `check_root` and `model_cache.store.deploy.deploy`.
    """
    root = None if root is None else check_root(recipe, root)
    with _wanted(out) as directory:
        compiler.compile_recipe(recipe, directory, way=way, bounds=bounds, progress=progress)
        found = artifacts.read(directory)
        outcomes = () if root is None else _deploy(recipe, found, root)
    return Delivered(found.contents, out, root, outcomes)


def way(recipe: Recipe, *, native: bool, capture: Path | None) -> Way:
    """How the artifacts of a recipe are to come about.

    Args:
        recipe: what is wanted.
        native: on the GPU that is here.
        capture: by taking them from this cache root.

    Raises UsageError where that cannot be, NotFoundError for a cache root without anything.
    """
    if native and capture is not None:
        raise UsageError("native and capture: one compiles on the GPU that is here, the other compiles nothing")
    if capture is not None:
        return captured.capture(recipe, capture)
    return natively.native(recipe) if native else CROSS


@contextmanager
def _wanted(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="model-cache-artifacts-") as temporary:
        yield Path(temporary) / "artifacts"


def check_root(recipe: Recipe, root: str) -> str:
    """The absolute path of a cache root that the result of a compile can be put into.

    Asked before anything is compiled.

    Raises:
        UsageError: if the engine looks for its cache elsewhere, or nothing can be written there.
        NotTrustedError: if this host takes what is signed only.
        ModelCacheError: if others could change what is written there.
    """
    if recipe.engine_name == "torch":
        raise UsageError("programs that use torch.compile look into no cache root: pack a wheel, and load that")
    if Trust.of_this_host().policy == "require":
        raise NotTrustedError(
            "this host takes signed wheels only, and what is compiled straight into a cache root has no signature: "
            "build and sign a wheel"
        )
    path = location.cache_root(root)
    try:
        with files.system_errors(path), Root.open(path, judge=True) as opened:
            if place.is_read_only(opened.descriptor):
                raise UsageError(f"the cache root {path} {READ_ONLY}")
    except NotFoundError:
        parent = next(parent for parent in Path(path).parents if parent.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UsageError(f"the cache root {path} cannot be made: {parent} cannot be written to") from None
    return path


def _deploy(recipe: Recipe, found: artifacts.Artifacts, root: str) -> tuple[Outcome, ...]:
    """Put artifacts into a cache root: for the GPUs that are here, or where none is, for all that were asked for."""
    packed = pack(found, recipe, name=recipe.distribution_name, version=VERSION)
    here = probe_gpus()
    on_gpus = any(target.kind == "gpu" for target in packed.manifest.targets)
    assumed = recipe.targets if on_gpus and not here.gpus else (None,)
    with tempfile.TemporaryDirectory(prefix="model-cache-deploy-") as site, lay_out(packed, Path(site)) as payload:
        outcomes = tuple(deploy(payload, root, _host(packed.manifest.engine, here, target)) for target in assumed)
    occupied = next((outcome for outcome in outcomes if outcome.occupied), None)
    if occupied:
        raise OccupiedError(occupied, root)
    return outcomes


def _host(engine: Engine, gpus: Gpus, assumed: str | None) -> Host:
    """This host, with the engine that has just compiled here, which need not be this interpreter's."""
    return Host(
        engine=engine.name,
        engine_version=engine.version,
        torch=engine.torch,
        cuda=engine.cuda,
        triton=engine.triton,
        python=engine.python,
        platform=engine.platform,
        hardware=Hardware(lambda: gpus, cpu.read, cpu.read_compiler),
        assumed=assumed,
    )
