"""What a program is, as far as a compiled function of it depends on that: read at the build and compared on the host.

Nothing here traces, imports a module of the program, or evaluates a text. Standard library only; imported where torch
is.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_SOURCE = 16 * 1024 * 1024
MAX_ITEMS = 10_000

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_OF_TORCH = frozenset({"dtype", "device", "layout", "memory_format", "Size"})
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps what is called beside its forward (torch 2.13.0, torch/nn/modules/module.py)."""


NO_VALUE = "nothing that can be compared"


def value(it: object, attribute: str) -> str:
    """What reading an attribute gives, as `text`; NO_VALUE for what has none, and where there is no such attribute."""
    return text(getattr(it, attribute, object())) or NO_VALUE


def text(value: object) -> str | None:
    """A value's text, the same in every process; None for what can only be compared by identity.

    Functions and classes are their names: what they do is in a source that is compared.
    """
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{name(type(value))}.{value.name}"
    kind = type(value).__name__
    if type(value).__module__ == "torch" and kind in _OF_TORCH:
        return str(value)
    if isinstance(value, _NAMED):
        return name(value)
    if isinstance(value, functools.partial):
        parts = [text(part) for part in (value.func, value.args, value.keywords)]
        return None if None in parts else f"partial({', '.join(map(str, parts))})"
    if type(value) in (tuple, list):
        return _texts(kind, value)  # type: ignore[arg-type]  # one of the two
    if type(value) in (set, frozenset):
        inner = [text(item) for item in value]  # type: ignore[attr-defined]  # as above
        return None if None in inner else f"{kind}({', '.join(sorted(map(str, inner)))})"
    if isinstance(value, dict):
        return _texts(kind, [item for pair in value.items() for item in pair])
    return None


def _texts(kind: str, items: Iterable[object]) -> str | None:
    inner = [text(item) for item in items]
    return None if None in inner or len(inner) > MAX_ITEMS else f"{kind}({', '.join(map(str, inner))})"


def name(value: Any) -> str:
    """A class's, function's or module's name, with its module."""
    module = getattr(value, "__module__", None)
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{module}.{own}" if module else str(own)


def source(module: str) -> str | None:
    """SHA-256 (hex) of the file that a Python module is, or would be, made of; None if there is none.

    module: dotted. Looked for among what is imported, then where it would be found; nothing is imported.
    """
    path = _file(module)
    if path is None or path.suffix != ".py":
        return None
    try:
        if path.stat().st_size > MAX_SOURCE:
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _file(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        found = getattr(loaded, "__file__", None)
        return Path(found) if isinstance(found, str) else None
    parent, _, _ = module.rpartition(".")
    places = None
    if parent:
        package = sys.modules.get(parent)
        if package is None:
            folder = _file(parent)
            places = [str(folder.parent)] if folder and folder.name == "__init__.py" else []
        else:
            places = list(getattr(package, "__path__", []))
    try:
        spec = PathFinder.find_spec(module, places)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def is_its_own(function: str) -> bool:
    """Whether a function has not been replaced by one of another name, as libraries do that patch others.

    function: ``module:qualified name``. One of a module that is not imported yet has not been.
    """
    where, _, path = function.partition(":")
    found: Any = sys.modules.get(where)
    if found is None:
        return True
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)  # of a classmethod, a staticmethod
    return (getattr(found, "__module__", None), getattr(found, "__qualname__", None)) == (where, path)


def tied(module: Any) -> dict[str, str]:
    """Names of a module's parameters and buffers that are the same tensor as one with a name before."""
    first: dict[int, str] = {}
    found = {}
    for each, tensor in tensors(module).items():
        if first.setdefault(id(tensor), each) != each:
            found[each] = first[id(tensor)]
    return found


def tensors(module: Any) -> dict[str, Any]:
    """Every parameter and buffer of a module by every qualified name it has."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def tables(module: Any) -> list[dict[str, Any]]:
    """Where one module keeps its parameters, buffers and submodules."""
    return [vars(module)[table] for table in ("_parameters", "_buffers", "_modules")]


def hooks(module: Any) -> list[Any]:
    """Where a module and its submodules keep hooks, and where torch keeps those of all modules: all empty at best."""
    import torch.nn.modules.module as every

    own = [vars(one)[where] for one in module.modules() for where in _HOOKS]
    return [*own, every._global_forward_hooks, every._global_forward_pre_hooks]


def hooked(module: Any) -> list[str]:
    """Which submodules have hooks, in words: they are in no compiled function."""
    found = [
        f"{each or 'the module'} has hooks"
        for each, one in module.named_modules()
        if any(vars(one)[where] for where in _HOOKS)
    ]
    return found or (["all modules have hooks"] if any(hooks(module)) else [])


def settings() -> dict[str, str]:
    """torch's, as far as they decide what is traced or compiled and may differ between two processes of one program."""
    import torch

    return {
        "default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
    }
