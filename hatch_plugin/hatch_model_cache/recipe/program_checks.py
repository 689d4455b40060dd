"""The checks of a recipe's options for the engine `torch`, and of those that are for the other engines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hatch_model_cache.compile import engines

ENGINE = "torch"

_OURS = ("factory", "mode")
_OTHERS = ("checkpoint", "drafts", "revision", "serve-args", "served-as")
_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def problems(table: Mapping[str, Any], engine: str | None) -> Iterator[tuple[str, str]]:
    """(option, problem) of each option that does not belong to the recipe's engine, or is missing for it.

    engine: `name==version`; None when that was refused already.
    """
    if engine is None:
        return
    if engine.partition("==")[0] == ENGINE:
        for key in _OTHERS:
            if key in table:
                yield key, f"is for engines that serve a model; {engine} compiles what `factory` returns."
        if "factory" not in table:
            yield "factory", f'is required for the engine {engine}: "module:function".'
    else:
        for key in _OURS:
            if key in table:
                yield key, f"is for the engine `{ENGINE}`, not for {engine}."


def factory_problem(factory: str) -> str | None:
    """Why `factory` cannot name a function; None when it can."""
    if not _FACTORY.fullmatch(factory):
        return f'must be "module:function", not {factory!r}.'
    return None


def mode_problem(mode: str) -> str | None:
    """Why there is no such form of a cache; None when there is."""
    adapter = engines.adapter(ENGINE)
    if mode not in adapter.MODES:
        why = f": {adapter.UNSOUND[mode]}" if mode in adapter.UNSOUND else ""
        return f"{mode!r} is not supported{why}; there is {', '.join(adapter.MODES)}."
    return None
