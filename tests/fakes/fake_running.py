"""A FAKE of what an adapter asks a running engine: factors, facts, key and config.json are those of the test.

It proves nothing about the engine, only what is made of its answers. The key is a digest of all factors, so that it
changes with each of them, as the engine's does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hatch_model_cache.compile.engines import vllm_rules, vllm_running


def key(factors: Mapping[str, str]) -> str:
    """A key in the form of the engine's."""
    return hashlib.sha256(json.dumps(dict(factors), sort_keys=True).encode()).hexdigest()


@dataclass
class FakeRunning:
    """A running engine. hidden: what is in its key and is told by no factor."""

    factors: dict[str, str]
    facts_: dict[str, Any]
    config: Path | None
    hidden: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)

    NAMING = vllm_running.NAMING
    obstacle = staticmethod(vllm_running.obstacle)

    def named_factors(self, model: object) -> dict[str, str]:
        return dict(self.factors)

    def facts(self, model: object) -> dict[str, Any]:
        return dict(self.facts_)

    def config_file(self, model: object) -> Path | None:
        return self.config

    def key_under(self, model: object, factors: Mapping[str, str]) -> str:
        self.asked.append(dict(factors))
        return self.key(factors)

    def key(self, factors: Mapping[str, str] | None = None) -> str:
        """What the engine looks for, under other names if they are given."""
        secret = {"hidden": self.hidden} if self.hidden else {}
        return key({**self.factors, **(factors or {}), **secret})

    @property
    def adapter(self) -> SimpleNamespace:
        """In the place of the engine's adapter."""
        flags = {"scheduler.max_num_seqs": "--max-num-seqs", "model.dtype": "--dtype"}
        return SimpleNamespace(
            VERSIONS=frozenset({"0.33.0"}), running=self, rules=vllm_rules.rules, flags=lambda: dict(flags)
        )
