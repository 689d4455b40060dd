"""A compiled function without guards, bound to a module that it was checked for, and checked again at every call.

Once, all that `model_cache.wheel.calls` records is compared with the module: sources, classes, what the traced code
has read, parameters and buffers. A call compares the inputs, and of the module what costs microseconds: every tensor
and every value that was read is the object that it was, and no tensor has another type or device. Sizes of the module's
tensors are checked by the compiled function itself (Inductor's ``size_asserts``).

Imports torch in functions: a program that gets here uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from model_cache.engine import program
from model_cache.errors import MismatchError
from model_cache.wheel.calls import Calls, Owner, Tensor

MAX_TOLD = 50
_MISSING = object()


class Bound:
    """A module's forward, compiled. Call it under ``torch.no_grad()`` with inputs as the recipe's.

    Attributes:
        hits: how many calls the compiled function has answered.
        misses: how many calls of `or_module` the module has.
    """

    def __init__(self, label: str, calls: Calls, module: Any, function: Callable[..., Any]) -> None:
        self.hits = 0
        self.misses = 0
        self._label = label
        self._calls = calls
        self._module = module
        self._function = function
        self._ranges = {one.name: (one.least, one.most) for one in calls.dimensions}
        self._places_of = {
            size: f"dimension {n} of {one.name}" for one in calls.leaves for n, size in enumerate(one.shape)
        }
        self._fix()

    def __call__(self, *inputs: Any) -> Any:
        """What the module would return, by the compiled function.

        Raises:
            MismatchError: if this call or the module as it is now is none that was compiled; it names every difference.
        """
        leaves, problems = self._checked(inputs)
        if problems:
            raise MismatchError(f"{self._label}: this call is not what was compiled", problems[:MAX_TOLD])
        return self._run(leaves)

    def or_module(self, *inputs: Any) -> Any:
        """As a call; one that does not fit is answered by the module itself, not compiled, and counted as a miss."""
        leaves, problems = self._checked(inputs)
        if not problems:
            return self._run(leaves)
        self.misses += 1
        return self._module(*inputs)

    def _run(self, leaves: list[Any]) -> Any:
        results = self._function(*self._tensors, *leaves)
        self.hits += 1
        [result] = _built(self._calls.outputs, results)
        return result

    def _checked(self, inputs: tuple[Any, ...]) -> tuple[list[Any], list[str]]:
        """The tensors of a call in order, and what is wrong with it."""
        leaves: list[Any] = [None] * len(self._calls.leaves)
        problems = list(_flattened(self._calls.inputs, inputs, "the inputs", leaves))
        if not problems:
            problems += self._surroundings()
            sizes: dict[str, int] = {}
            for expected, found in zip(self._calls.leaves, leaves, strict=True):
                problems += _differences(expected, found, sizes, self._ranges)
            if not problems:
                problems += self._too_large(sizes)
            if self._has_changed():
                problems += differences(self._calls, self._module)
                if not problems:
                    self._fix()
        return leaves, problems

    def _too_large(self, sizes: dict[str, int]) -> Iterator[str]:
        for limit in self._calls.limits:
            product = math.prod(sizes[name] for name in limit.names)
            if product > limit.most:
                where = " times ".join(self._places_of[name] for name in limit.names)
                yield f"{where} is {product}, compiled was up to {limit.most}"

    def _surroundings(self) -> Iterator[str]:
        """What is on for this thread and was not for the trace."""
        import torch

        if torch.is_grad_enabled():
            yield "gradients are on: call it under torch.no_grad()"
        kinds = {tensor.device.partition(":")[0] for tensor in self._calls.leaves}
        yield from (f"autocast is on for {kind}" for kind in sorted(kinds) if torch.is_autocast_enabled(kind))
        if torch._C._len_torch_function_stack():
            yield "a mode of torch is on (a default device, for example)"
        yield from _other_settings(self._calls)

    def _fix(self) -> None:
        """Note what a call compares by identity."""
        every = program.tensors(self._module)
        self._tensors = [every[one.name] for one in self._calls.tensors]
        self._types = [(one.dtype, one.device) for one in self._tensors]
        tables = [table for one in self._module.modules() for table in program.tables(one)]
        places = [(table, name) for table in tables for name in table]
        owners = _owners(self._calls.owners, self._module)
        for owner, it in zip(self._calls.owners, owners, strict=True):
            places += [(vars(it), name) for name in (*owner.values, *owner.objects)]
        self._places = [(where, name, where.get(name, _MISSING)) for where, name in places]
        self._sizes = [(table, len(table)) for table in (*tables, *map(vars, owners))]
        self._hooks = program.hooks(self._module)

    def _has_changed(self) -> bool:
        """Whether the module is to be compared again."""
        for where, name, value in self._places:
            if where.get(name, _MISSING) is not value:
                return True
        if self._types != [(one.dtype, one.device) for one in self._tensors]:
            return True
        return any(self._hooks) or any(len(where) != size for where, size in self._sizes)


def differences(calls: Calls, module: Any) -> list[str]:
    """Why a module is not the one that was compiled, one line each; none if it is."""
    found = [*_other_modules(calls, module), *_other_sources(calls), *_other_settings(calls)]
    if not found:
        found += _other_values(calls, module)
    every = program.tensors(module)
    for expected in calls.tensors:
        if expected.name not in every:
            found.append(f"{expected.name} is missing")
        else:
            found += _differences(expected, every[expected.name], {}, {})
    more = every.keys() - calls.tied.keys() - {expected.name for expected in calls.tensors}
    found += [f"{name} is there, compiled was none such" for name in sorted(more)]
    if program.tied(module) != dict(calls.tied):
        found.append("other parameters than at the build are one and the same tensor")
    found += program.hooked(module)
    return found[:MAX_TOLD]


def _other_modules(calls: Calls, module: Any) -> Iterator[str]:
    expected = {owner.path[0]: owner.type for owner in calls.owners if len(owner.path) == 1}
    found = {name: program.name(type(one)) for name, one in module.named_modules()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            what = f"{name or 'the module'} is {found.get(name, 'missing')}"
            yield f"{what}, compiled was {expected.get(name, 'none such')}"


def _other_sources(calls: Calls) -> Iterator[str]:
    for name, digest in calls.sources.items():
        found = program.source(name)
        if found is None:
            yield f"the source of {name} is not found here"
        elif found != digest:
            yield f"the source of {name} is another one than at the build"
    for name in calls.functions:
        if not program.is_its_own(name):
            yield f"{name.replace(':', '.')} has been replaced by another function"


def _other_settings(calls: Calls) -> Iterator[str]:
    for name, value in program.settings().items():
        if calls.settings.get(name) != value:
            yield f"{name} is {value}, compiled was {calls.settings.get(name)}"


def _other_values(calls: Calls, module: Any) -> Iterator[str]:
    """Expects that the submodules are those of the build."""
    owners = _owners(calls.owners, module)
    for owner, it in zip(calls.owners, owners, strict=True):
        label = ".".join(part for part in owner.path if part) or "the module"
        if it is None or program.name(type(it)) != owner.type:
            yield f"{label} is {'missing' if it is None else program.name(type(it))}, compiled was {owner.type}"
            continue
        here = vars(it)
        for name, expected in owner.values.items():
            found = program.value(it, name)
            if found != expected:
                yield f"{label}: {name} is {found}, compiled was {expected}"
        for name, number in owner.objects.items():
            if here.get(name) is not owners[number]:
                yield f"{label}: {name} is another object"
        for name in calls.absent.get(owner.type, "").split():
            if name in here:
                yield f"{label}: {name} was set on the object, compiled was what its class has"


def _owners(owners: Sequence[Owner], module: Any) -> list[Any]:
    """The objects that owners' paths lead to; None where there is none."""
    modules = dict(module.named_modules())
    found = []
    for owner in owners:
        it = modules.get(owner.path[0])
        for name in owner.path[1:]:
            it = getattr(it, "__dict__", {}).get(name)
        found.append(it)
    return found


def _differences(
    expected: Tensor, found: Any, sizes: dict[str, int], ranges: dict[str, tuple[int, int]]
) -> Iterator[str]:
    """What is other about a tensor than expected. sizes: what dimensions are in this call, and are noted to be."""
    import torch

    if type(found) not in (torch.Tensor, torch.nn.Parameter):
        yield f"{expected.name} is a {program.name(type(found))}, compiled was a tensor"
        return
    if str(found.dtype) != expected.dtype:
        yield f"{expected.name} is {found.dtype}, compiled was {expected.dtype}"
    if str(found.device) != expected.device:
        yield f"{expected.name} is on {found.device}, compiled was {expected.device}"
    shape = tuple(found.shape)
    if len(shape) != len(expected.shape):
        yield f"{expected.name} has {len(shape)} dimensions, compiled were {len(expected.shape)}"
        return
    for n, (size, wanted) in enumerate(zip(shape, expected.shape, strict=True)):
        if wanted not in ranges:
            if str(size) != wanted:
                yield f"{expected.name}: dimension {n} is {size}, compiled was {wanted}"
            continue
        least, most = ranges[wanted]
        if not least <= size <= most:
            yield f"{expected.name}: dimension {n} is {size}, compiled was from {least} to {most}"
        elif sizes.setdefault(wanted, size) != size:
            yield f"{expected.name}: dimension {n} is {size}, and {sizes[wanted]} where it has to be the same"
    if found.layout != torch.strided or found.is_neg() or found.is_conj():
        yield f"{expected.name} is no plain tensor in memory"
    elif not expected.stride and not found.is_contiguous():
        yield f"{expected.name} is not contiguous"
    elif expected.stride and tuple(map(str, found.stride())) != expected.stride:
        yield f"{expected.name} has the strides {tuple(found.stride())}, compiled was {', '.join(expected.stride)}"


def _flattened(node: Any, value: Any, label: str, leaves: list[Any]) -> Iterator[str]:
    """Put the tensors that `value` holds to their numbers; says where it is held otherwise than `node`."""
    if isinstance(node, int):
        leaves[node] = value
        return
    [(kind, items)] = node.items()
    if type(value).__name__ != kind or len(value) != len(items):
        yield f"{label}: {program.name(type(value))} of another form than compiled, a {kind} of {len(items)}"
    elif kind == "dict":
        if value.keys() != items.keys():
            yield f"{label}: other keys than compiled, {', '.join(sorted(items))}"
            return
        for key, item in items.items():
            yield from _flattened(item, value[key], f"{label}[{key!r}]", leaves)
    else:
        for n, (item, inner) in enumerate(zip(items, value, strict=True)):
            yield from _flattened(item, inner, f"{label}[{n}]", leaves)


def _built(node: Any, results: Sequence[Any]) -> Any:
    """Tuples, lists and dicts around results, as the module returns them."""
    if isinstance(node, int):
        return results[node]
    [(kind, items)] = node.items()
    if kind == "dict":
        return {key: _built(item, results) for key, item in items.items()}
    built = [_built(item, results) for item in items]
    return tuple(built) if kind == "tuple" else built
