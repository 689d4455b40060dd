"""Replacing what asks a live GPU, one attribute at a time, each with its reason, all undone together."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

_MISSING = object()


@dataclass(frozen=True)
class Patch:
    """One replaced attribute: where, why, and the version it was checked on."""

    owner: str
    name: str
    why: str
    checked: str


class Patches:
    """The replaced attributes of one pretence, undone in reverse order by `undo`."""

    def __init__(self) -> None:
        self.done: list[Patch] = []
        self._undo = ExitStack()

    def set(self, owner: Any, name: str, value: object, *, why: str, checked: str) -> None:
        """Replace ``owner.name`` by ``value``.

        A plain function is copied first, so that one function given twice yields two objects: Dynamo keeps a map
        from function object to rule and asserts that no object stands in it twice.

        Args:
            owner: module, class or object that holds the attribute.
            why: the question that must be answered without a GPU.
            checked: the version the patch was checked on, for example ``"torch 2.14.0"``.

        Raises:
            AttributeError: if there is nothing to replace: what asked in `checked` asks in another way here.
        """
        label = str(getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner)))
        if not hasattr(owner, name):
            raise AttributeError(f"{label} has no {name}, which is replaced because {why} (checked on {checked})")
        if isinstance(value, types.FunctionType):
            value = _copy(value, name, owner)
        # __dict__, not getattr: a staticmethod or property must come back as what it was
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, before)
        self.done.append(Patch(label, name, why, checked))

    def set_everywhere(self, module: types.ModuleType, name: str, value: object, *, why: str, checked: str) -> None:
        """As `set`, and in every module of the same top package that has imported the name already."""
        original = getattr(module, name)
        package = module.__name__.partition(".")[0]
        self.set(module, name, value, why=why, checked=checked)
        for other in list(sys.modules.values()):
            if (
                other is not module
                and isinstance(other, types.ModuleType)
                and other.__name__.partition(".")[0] == package
                and vars(other).get(name, _MISSING) is original
            ):
                self.set(other, name, value, why=why, checked=checked)

    def on_undo(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function(*args)`` at `undo`, for what is not an attribute."""
        self._undo.callback(function, *args)

    def undo(self) -> None:
        """Put everything back."""
        self._undo.close()


def _copy(function: types.FunctionType, name: str, owner: object) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    if isinstance(owner, types.ModuleType):
        copy.__module__ = owner.__name__
    return copy
