"""What a module's forward reads while it is traced: attributes of its submodules and of objects that they lead to, and
the sources of the functions that ran.

A trace keeps the values that it saw. So a program may only use what was compiled of it where all these are the same:
`model_cache.engine.standalone` compares them. Checked on torch 2.13.0.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from model_cache.engine import program

from ..pretend.patches import Patches

CHECKED = "torch 2.13.0"

_TORCHS = "filelock fsspec jinja2 markupsafe mpmath networkx numpy setuptools sympy torch triton typing_extensions"
_NOT_TRACED = frozenset([*_TORCHS.split(), "_distutils_hack", "model_cache", "hatch_model_cache"])
"""Packages whose code is not the program's: torch and what it needs itself, an import hook of setuptools, ours."""


@dataclass
class Seen:
    """One object that was read. values, objects: as `model_cache.wheel.calls.Owner`; absent: no attribute of it."""

    path: tuple[str, ...]
    it: Any
    values: dict[str, str] = field(default_factory=dict)
    objects: dict[str, int] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)


class Reads:
    """Notes reads inside of `noting`. problems: what was read and cannot be compared on another host."""

    def __init__(self, module: Any, patches: Patches) -> None:
        import torch

        self.seen: list[Seen] = []
        self.problems: set[str] = set()
        self._ran: set[tuple[str, str]] = set()
        self._number: dict[int, int] = {}
        self._patches = patches
        self._watched: set[type] = set()
        self._noting = False
        self._internal = set(vars(torch.nn.Module())) - {"training"}
        for name, submodule in module.named_modules():
            self._add((name,), submodule)
        self._watch(torch.nn.Module)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what is read and which functions run until the block ends."""
        before = sys.getprofile()
        self._noting = True
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before)
            self._noting = False

    def sources(self) -> dict[str, str]:
        """Module → SHA-256 of its file, of everything that ran and of the classes of all that was read."""
        classes = {kind for one in self.seen for kind in type(one.it).__mro__}
        names = {name for name, _ in self._ran} | {str(kind.__module__) for kind in classes}
        found = {}
        for name in sorted(filter(_is_traced, names)):
            digest = program.source(name)
            if digest is None:
                self.problems.add(f"{name} has no source file that another host could compare")
            else:
                found[name] = digest
        return found

    def functions(self) -> list[str]:
        """``module:name`` of everything that ran and can be found by its name."""
        named = {f"{module}:{name}" for module, name in self._ran if _is_traced(module) and "<" not in name}
        return sorted(filter(program.is_its_own, named))

    def absent(self) -> dict[str, str]:
        """Class → names that were read and are no attribute of any of its instances. Where they are one of another
        instance, that they are missing is noted as a value."""
        found: dict[str, set[str]] = {}
        set_on: dict[str, set[str]] = {}
        for one in self.seen:
            kind = program.name(type(one.it))
            found.setdefault(kind, set()).update(one.absent)
            set_on.setdefault(kind, set()).update(one.values, one.objects)
        for one in self.seen:
            one.values.update(dict.fromkeys(one.absent & set_on[program.name(type(one.it))], program.NO_VALUE))
        left = {kind: names - set_on[kind] for kind, names in found.items()}
        return {kind: " ".join(sorted(names)) for kind, names in sorted(left.items()) if names}

    def _called(self, frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_globals.get("__name__")
            if isinstance(name, str):
                self._ran.add((name, frame.f_code.co_qualname))

    def _add(self, path: tuple[str, ...], it: Any) -> int:
        self._number[id(it)] = len(self.seen)
        self.seen.append(Seen(path, it))
        return len(self.seen) - 1

    def _watch(self, kind: type) -> None:
        """Have instances of a class say what is read off them."""
        if any(known in self._watched for known in kind.__mro__):
            return
        real: Any = kind.__getattribute__

        def getattribute(it: Any, name: str) -> Any:
            value = real(it, name)
            if self._noting and id(it) in self._number:
                self._noting = False
                try:
                    self._note(self.seen[self._number[id(it)]], name, value)
                finally:
                    self._noting = True
            return value

        self._watched.add(kind)
        why = "what a trace reads has to be the same where it is used"
        self._patches.set(kind, "__getattribute__", getattribute, why=why, checked=CHECKED)

    def _note(self, one: Seen, name: str, value: Any) -> None:
        import torch

        if name in one.values or name in one.objects or name in one.absent or name.startswith("__"):
            return
        if isinstance(one.it, torch.nn.Module) and name in self._internal:
            return
        if (text := program.text(value)) is not None:
            one.values[name] = text
        elif name not in object.__getattribute__(one.it, "__dict__"):
            one.absent.add(name)  # a method, or what a property gives: of its class, whose source is compared
        elif id(value) in self._number:
            one.objects[name] = self._number[id(value)]
        elif _can_be_watched(value):
            self._watch(type(value))
            one.objects[name] = self._add((*one.path, name), value)
        else:
            where = ".".join(filter(None, (*one.path, name)))
            self.problems.add(f"{where} is read, and no other host can compare a {program.name(type(value))}")


def _can_be_watched(value: Any) -> bool:
    import torch

    kind = type(value)
    heap = bool(kind.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE: attributes of others cannot be replaced
    return heap and hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, torch.nn.Module))


def _is_traced(name: str) -> bool:
    top = name.partition(".")[0]
    made = top.startswith("namedtuple_")  # by the standard library, for a class's __new__
    return not made and top not in _NOT_TRACED and top not in sys.stdlib_module_names
