"""Pretend two GPUs up to where the engine's core would be started, and look at every attribute that is replaced.

Runs in the engine's interpreter:

    python patched_attributes.py <hatch_plugin> <target> <scratch directory>

Prints a JSON list on its last line, for each attribute: owner, name, and what is wrong with it. An attribute that is
not there raises (`Patches.set`); what is looked at here is whether the answer takes every call that the question does.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

from hatch_model_cache import targets
from hatch_model_cache.compile.pretend import patches, pretend

results: list[tuple[str, str, str]] = []
real_set = patches.Patches.set


def calls(signature: inspect.Signature) -> Iterator[tuple[list[None], dict[str, None]]]:
    """The least that a function takes, all it takes by position, and all by name."""
    named = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    first = [p.name for p in named[:1] if p.name in ("self", "cls")]
    by_position = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: None for p in named if p.kind is p.KEYWORD_ONLY}
    needed = [p for p in by_position if p.default is p.empty]
    yield [None] * len(needed), {n: None for n in by_name if signature.parameters[n].default is inspect.Parameter.empty}
    yield [None] * len(by_position), by_name
    only = [p for p in by_position if p.kind is p.POSITIONAL_ONLY or p.name in first]
    yield [None] * len(only), {p.name: None for p in named if p.name not in first}


def refusal(question: Any, answer: Any) -> str:
    """Which call of `question` is none of `answer`; empty if all are, or where nobody can tell."""
    functions = [f.__func__ if isinstance(f, staticmethod | classmethod) else f for f in (question, answer)]
    if not all(map(callable, functions)) or any(isinstance(f, type) for f in functions):
        return ""
    try:
        asked, answered = map(inspect.signature, functions)
    except ValueError:  # written in C, and silent about it
        return ""
    for arguments, keywords in calls(asked):
        try:
            answered.bind(*arguments, **keywords)
        except TypeError as error:
            return f"{error}: asked {asked}, answered {answered}"
    return ""


def noting_set(self: Any, owner: Any, name: str, value: object, **about: Any) -> None:
    question = vars(owner).get(name, getattr(owner, name, None))
    real_set(self, owner, name, value, **about)
    results.append((self.done[-1].owner, name, refusal(question, value)))


patches.Patches.set = noting_set

with pretend(targets.load_gpu(sys.argv[2]), scratch=Path(sys.argv[3]), count=2) as pretence:
    import vllm.v1.engine.core  # noqa: F401

    from hatch_model_cache.compile.engines import vllm_stops

    pretence.before_worker()
    vllm_stops.stop_at_first_call(pretence, None, print)  # nothing is looked up
    vllm_stops.stop_without_models(pretence, set())
    vllm_stops.stop_before_compile(pretence, piecewise=False)

print(json.dumps(results))
sys.stdout.flush()
os._exit(0)  # the engine's threads would hang an orderly exit
