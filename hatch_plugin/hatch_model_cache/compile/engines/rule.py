"""A safety rule of `check`: one value that an engine's key does not hold and that must be equal all the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One value that must be equal.

    Attributes:
        fact: its name in ``unkeyed`` or ``host_answers`` of the manifest.
        why: what happens on a host that differs.
        change: what to do about it.
        source: the report or measurement behind the rule.
        versions: engine versions it holds for.
        ranks_only: only when the model is served with more than one rank.
    """

    fact: str
    why: str
    change: str
    source: str
    versions: frozenset[str]
    ranks_only: bool = False
