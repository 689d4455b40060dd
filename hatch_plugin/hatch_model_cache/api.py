"""`compile_model`: what `model-cache compile` does, from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hatch_model_cache.compiling.delivery import Delivered
    from hatch_model_cache.compiling.progress import Progress
    from hatch_model_cache.recipe.recipe import Recipe
    from model_cache.store.deploy import Outcome
    from model_cache.wheel.manifest import Manifest

StrPath = str | os.PathLike[str]

COMMAND = "vllm"
"""What `compile_model` puts before ``serve``: the program of every engine that serves."""


@dataclass(frozen=True)
class Compiled:
    """What `compile_model` has made.

    Attributes:
        name: the distribution name that a wheel of it has.
        recipe: what was compiled, with its defaults spelled out.
        contents: everything that the wheel's manifest will say, but name and version: keys, factors, files, kernels.
        artifacts: the artifact directory, which the build hook packs; None if none was asked for.
        cache_root: where the result was put, absolute; None if that was not asked for.
        outcomes: what was done to the entries there, one for each target that was deployed.
        notes: what was read into the request: defaults spelled out, flags left out.
        warnings: what is likely to surprise on the serving host.
    """

    name: str
    recipe: Recipe
    contents: Manifest
    artifacts: Path | None
    cache_root: Path | None
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The engine's cache keys, one for each served name, target and compiled model; some names have two."""
        return tuple(dict.fromkeys(entry.key for entry in self.contents.entries))


def compile_model(
    model: str,
    *,
    targets: str | Sequence[str],
    serve_args: Sequence[str] = (),
    engine: str | None = None,
    config: StrPath | None = None,
    checkpoint: StrPath | None = None,
    revision: str | None = None,
    served_as: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    device_layout: str | None = None,
    drafts: Mapping[str, StrPath] | None = None,
    out: StrPath | None = None,
    into_cache_root: StrPath | None = None,
    native: bool = False,
    capture: StrPath | None = None,
    overlap: int | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Compile a model for GPUs or a CPU as its engine would, in the engine's interpreter; no GPU, no weights.

    The recipe is that of ``model-cache new --target … -- vllm serve MODEL ARGS…``. At least one of `out` and
    `into_cache_root` says where the result goes. Takes a minute or more for each target and rank, and runs the engine
    in processes of its own: MODEL_CACHE_PYTHON, else this interpreter, must have it.

    Args:
        model: the string that the model is served under: an id on the Hub, a directory, a URL.
        targets: one name of a target or several, as `model-cache targets` lists them.
        serve_args: what follows the model on the engine's command line.
        engine: ``"vllm==0.33.0"``; by default what is installed.
        config: directory with config.json and tokenizer files; by default `model` if it is one, else the Hub's.
        checkpoint: directory with the weights, or ``"ORG/NAME@COMMIT"`` on the Hub: names, shapes and dtypes in
            their headers must fit the model. By default none is looked at.
        revision: the model's commit on the Hub.
        served_as: other strings that the model is served under; each is a key of its own.
        environment: variables that the serving host sets for the engine.
        device_layout: which GPU each of several ranks uses: ``"per-rank"``, the default, or ``"single"``.
        drafts: speculative models that `serve_args` name → directory with their config.json.
        out: artifact directory to make; it must not exist, or be empty.
        into_cache_root: cache root of an engine, where the result is deployed as a wheel's content would be.
        native: compile on the GPU that is here, with random weights; it must be the target. Never run on a GPU yet.
        capture: cache root from which to take what a real engine has left there, compiling nothing.
        overlap: bytes of memory that each engine process may take while it runs beside more urgent work, with the
            lowest priority, one at a time; None: it takes what it needs, and several run at a time.
        progress: told of stages and kernels as they come.

    Returns:
        What was compiled, and where it is.

    Raises:
        model_cache.errors.UsageError: for wrong arguments, with all problems at once, or when no interpreter has the
            engine. Nothing was compiled then.
        model_cache.errors.CompileError: if the engine fails, the checkpoint does not fit the model, or what is
            left may not be shipped.
        model_cache.errors.NotFoundError: if no engine has left anything where it is to be captured.
        model_cache.errors.ModelCacheError: if the cache root cannot be written to, or takes signed wheels only.
    """
    given = dict(locals())
    del given["progress"]
    from hatch_model_cache import arguments
    from hatch_model_cache.compiling import delivery
    from hatch_model_cache.compiling.overlap import Bounds
    from hatch_model_cache.recipe.recipe import options
    from hatch_model_cache.scaffold import request
    from model_cache.errors import UsageError

    problems = arguments.problems(given)
    if out is None and into_cache_root is None:
        problems.append("out, into_cache_root: give one or both: where the result goes")
    if problems:
        raise UsageError("compile_model cannot take this:", problems)
    words = {option.key: option.attribute for option in options()} | {"version": "version"}
    asked = request.Request(
        command=(COMMAND, "serve", model, *serve_args),
        targets=[targets] if isinstance(targets, str) else targets,
        engine=engine,
        config=None if config is None else os.fspath(config),
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        revision=revision,
        served_as=served_as,
        environment=environment or {},
        device_layout=device_layout,
        drafts={name: os.fspath(path) for name, path in (drafts or {}).items()},
    )
    recipe, notes = request.recipe(asked, words)
    delivered = delivery.deliver(
        recipe,
        out=None if out is None else Path(out),
        root=None if into_cache_root is None else os.fspath(into_cache_root),
        bounds=None if overlap is None else Bounds(overlap),
        way=delivery.way(recipe, native=native, capture=None if capture is None else Path(capture)),
        progress=progress,
    )
    return compiled(recipe, delivered, notes)


def compiled(recipe: Recipe, delivered: Delivered, notes: Sequence[str] = ()) -> Compiled:
    """The result of a compile, as it is told."""
    return Compiled(
        name=recipe.distribution_name,
        recipe=recipe,
        contents=delivered.contents,
        artifacts=delivered.artifacts,
        cache_root=None if delivered.root is None else Path(delivered.root),
        outcomes=delivered.outcomes,
        notes=tuple(notes),
        warnings=(*recipe.warnings(), *recipe.doubts()),
    )
