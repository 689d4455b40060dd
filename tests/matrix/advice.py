"""Applies what a verdict advises, as a user would who reads it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence

from hatch_model_cache.checking.changes import AND

from .configurations import H100, Configuration


def apply(configuration: Configuration, changes: Sequence[str]) -> Configuration | None:
    """The configuration with all `changes` made; None if one of them is not a flag, a variable or a name."""
    if not any(changes) or configuration.target != H100 or configuration.gpu:
        return None
    flags, environment, model = dict(configuration.flags), dict(configuration.environment), configuration.model
    for change in [one for joined in changes if joined for one in joined.split(AND)]:
        verb, _, what = change.partition(" ")
        word, _, rest = what.partition(" ")
        match verb:
            case "give" if word.startswith("-"):
                flags.pop(word.replace("--", "--no-", 1), None)
                flags.pop(word.replace("--no-", "--", 1), None)
                flags[word] = shlex.split(rest)[0] if rest else None
            case "leave" if rest.startswith("-"):
                flags[rest] = False
            case "set" if "=" in word:
                environment[word.partition("=")[0]] = what.partition("=")[2]
            case "unset":
                environment.pop(what, None)
            case "serve" if what.startswith("it as "):
                model = what.removeprefix("it as ").split(" or ")[0]
            case _:
                return None
    title = f"{configuration.title}, as advised"
    return dataclasses.replace(
        configuration, title=title, flags=flags, environment=environment, model=model, at_import=False
    )
