"""The command an engine is served with, read for a recipe: its model, what belongs into `serve-args`, what does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hatch_model_cache.checking import check
from hatch_model_cache.compile import engines
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import UsageError


@dataclass(frozen=True)
class ServeLine:
    """`vllm serve MODEL …` in its parts."""

    command: str
    """The program before ``serve``: ``vllm``."""
    model: str
    arguments: tuple[str, ...]
    """What belongs into a recipe's `serve-args`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that were set in the command, before the engine."""
    dropped: tuple[str, ...] = ()
    """Arguments that were left out: they are in no key, and belong to one host."""


def read(words: Sequence[str]) -> ServeLine:
    """Take a serve command apart.

    Raises UsageError if it is none, or its model stands neither first nor behind ``--model``.
    """
    command = check.parse_command(words)
    model, rest = _model(command.engine, list(command.arguments))
    kept, dropped = _without(rest, engines.adapter(command.engine).SERVER_ONLY)
    return ServeLine(command.engine, model, tuple(kept), dict(command.environment), tuple(dropped))


def _model(engine: str, arguments: list[str]) -> tuple[str, list[str]]:
    if not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == "--model":
            end = index + (1 if equals else 2)
            model = value if equals else "".join(arguments[index + 1 : end])
            if model:
                return model, arguments[:index] + arguments[end:]
    raise UsageError(f"give the model right after `{engine} serve`, before its options")


def _without(arguments: Sequence[str], unwanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without these flags and their values, and the flags that were there."""
    kept: list[str] = []
    dropped: list[str] = []
    dropping = False
    for argument in arguments:
        if argument.startswith("-"):
            flag = argument.partition("=")[0].replace("_", "-")
            dropping = flag in unwanted
            if dropping:
                dropped.append(flag)
        if not dropping:
            kept.append(argument)
    return kept, dropped


def pinned(recipe: Recipe) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with defaults that depend on the target spelled out, where its targets agree; and notes on that."""
    adapter = engines.adapter(recipe.engine_name)
    found = {target.name: adapter.pins(target.as_dict(), recipe.serve_args) for target in recipe.load_targets()}
    first = next(iter(found.values()))
    if any(other != first for other in found.values()):
        each = "; ".join(f"{name} {' '.join(_flat(values))}" for name, values in found.items())
        return recipe, (f"the targets have different defaults, choose one for all: {each}",)
    if not first:
        return recipe, ()
    where = recipe.targets[0] if len(found) == 1 else "these targets"
    note = f"{' '.join(_flat(first))} spelled out: what `{adapter.COMMAND} serve` takes on {where}"
    return dataclasses.replace(recipe, serve_args=(*recipe.serve_args, *_flat(first))), (note,)


def _flat(values: dict[str, str]) -> tuple[str, ...]:
    return tuple(word for pair in values.items() for word in pair)


def local_config(model: str) -> Path | None:
    """The model's own directory, if it is one here and holds a config.json."""
    directory = Path(model)
    return directory if (directory / "config.json").is_file() else None
