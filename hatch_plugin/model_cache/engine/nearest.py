"""The wheel that comes nearest to what an engine looks for and does not find, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who reads the record needs none of it
    from types import ModuleType

    from model_cache.store.plan import Adopted
    from model_cache.wheel.manifest import Manifest

MOST = 3
"""Differences that a line names."""


@dataclass(frozen=True)
class Difference:
    """One value in which the nearest wheel and this engine differ. None: it has none."""

    factor: str
    wheel: str | None
    here: str | None


@dataclass(frozen=True)
class Nearest:
    """What a look-up that found nothing comes nearest to.

    Attributes:
        wheel: distribution name, "" when no wheel can be compared.
        differences: what differs, what a user sets first; of wheels for other models, nothing.
        adoptable: the wheel's entries under the engine's key, when nothing but the name of the weights differs.
        reason: why they may be adopted, or why nothing may be; in words.
    """

    wheel: str = ""
    differences: tuple[Difference, ...] = ()
    adoptable: tuple[Adopted, ...] = ()
    reason: str = ""

    def line(self) -> str:
        """What differs, in one line."""
        told = [f"{d.factor} {d.here or 'not set'} here, {d.wheel or 'not set'}" for d in self.differences[:MOST]]
        if not told:
            return self.reason
        more = len(self.differences) - len(told)
        text = f"{'; '.join(told)} in {self.wheel}" + (f", and {more} more" if more else "")
        return f"{text} ({self.reason})" if self.reason else text


def find(model: Any, path: str, manifests: Sequence[Manifest]) -> Nearest:
    """Compare what the engine looks for at `path` for a live `model` with installed wheels.

    Raises what goes wrong in the engine.
    """
    found: Nearest = _near_miss().compare(model, path, manifests)
    return found


def objection(model: Any, manifest: Manifest) -> str:
    """What rule speaks against what a live `model` has loaded of a wheel; "" if none does.

    Raises what goes wrong in the engine.
    """
    found: str = _near_miss().objection(model, manifest)
    return found


def _near_miss() -> ModuleType:
    """The only place where the serving side reaches the build side from within an engine: what is in a key, what is
    not, and how it is asked for, is known there alone."""
    import importlib

    return importlib.import_module("hatch_model_cache.checking.near_miss")
