"""What somebody asks to have compiled, on a command line or from Python, and the one way from there to a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hatch_model_cache.compile import engines
from hatch_model_cache.compiling import interpreter
from hatch_model_cache.recipe.recipe import Recipe
from hatch_model_cache.scaffold import scaffold, serve_line
from hatch_model_cache.scaffold.serve_line import ServeLine
from model_cache.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command that serves a model, and what it does not tell.

    Attributes:
        command: ``vllm serve MODEL …``, in words.
        targets: names of targets.
        engine: ``vllm==0.33.0``.
        config: directory with config.json; by default that of the model, if it is one here, else the Hub's.
        checkpoint: directory with the weights, or ``ORG/NAME@COMMIT``, of which the headers are read.
        revision: the model's commit; by default what the command says.
        served_as: other model strings that it is served under.
        environment: what the serving host sets, besides what stands in the command.
        device_layout, drafts, variant, hardware, name_with_org: as in a recipe.
    """

    command: Sequence[str]
    targets: Sequence[str] = ()
    engine: str | None = None
    config: str | None = None
    checkpoint: str | None = None
    revision: str | None = None
    served_as: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    device_layout: str | None = None
    drafts: Mapping[str, str] = field(default_factory=dict)
    variant: str | None = None
    hardware: str | None = None
    name_with_org: bool = False


@dataclass(frozen=True)
class Read:
    """What came of a request. recipe: nothing pinned yet, None if there are problems; line: None if there is none."""

    recipe: Recipe | None
    line: ServeLine | None
    problems: tuple[str, ...]


def read(request: Request, words: Mapping[str, str], *, version: str = "0") -> Read:
    """Look at everything that is asked for.

    Args:
        request: what is asked for; relative paths are below the working directory.
        words: TOML key → what the user wrote it as; problems begin with it.
        version: of the project that is to be made.
    """
    problems: list[str] = []
    line: ServeLine | None = None
    try:
        line = serve_line.read(request.command)
    except UsageError as error:
        problems.append(error.message)
    recipe, found = scaffold.checked(_table(request, line), words, where=Path.cwd(), version=version)
    # what is wrong for want of a command was said already
    problems += [text for text in found if line is not None or not text.startswith(words["model"])]
    if recipe is not None and line is not None:
        problems += _disagreements(recipe, line, words)
    return Read(None if problems else recipe, line, tuple(problems))


def recipe(request: Request, words: Mapping[str, str], problems: Sequence[str] = ()) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a request, pinned as `model-cache new` pins it, and notes for people.

    Without an engine in the request it is for the one that is installed.

    Args:
        request: what is asked for.
        words: as for `read`.
        problems: what is known to be wrong with it already.

    Raises UsageError with every problem.
    """
    if request.engine is None:
        request = replace(request, engine=interpreter.engine_of_host(engines.SERVERS))
    found = read(request, words)
    if found.recipe is None or found.line is None or problems:
        raise UsageError("No recipe follows from this:", [*found.problems, *problems])
    pinned, notes = serve_line.pinned(found.recipe)
    return pinned, (*notes, *left_out(found.line))


def left_out(line: ServeLine) -> list[str]:
    """What to say about flags of the command that are not in the recipe."""
    return [f"left out, no key holds it: {flag}" for flag in line.dropped]


def _table(request: Request, line: ServeLine | None) -> dict[str, Any]:
    """The recipe's options under their TOML keys; None for those that nobody gave."""
    model = line.model if line else None
    local = serve_line.local_config(model) if model else None
    served = dict.fromkeys([*([model] if model else []), *request.served_as])
    return {
        "engine": request.engine,
        "model": model,
        "revision": request.revision or _revision(line.arguments if line else ()),
        "config": request.config or (str(local) if local else None),
        "checkpoint": request.checkpoint,
        "served-as": list(served) or None,
        "targets": list(dict.fromkeys(request.targets)) or None,
        "serve-args": list(line.arguments) if line else [],
        "environment": {**(line.environment if line else {}), **request.environment},
        "device-layout": request.device_layout,
        "drafts": dict(request.drafts),
        "name-with-org": request.name_with_org,
        "hardware": request.hardware,
        "variant": request.variant,
    }


def _disagreements(recipe: Recipe, line: ServeLine, words: Mapping[str, str]) -> Iterator[str]:
    if line.command != engines.adapter(recipe.engine_name).COMMAND:
        yield f"{words['engine']}: is {recipe.engine}, and the command starts {line.command}."


def _revision(arguments: Sequence[str]) -> str | None:
    """The value of the command's own --revision, which a recipe's must equal."""
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == "--revision":
            return value if equals else "".join(arguments[index + 1 : index + 2])
    return None
