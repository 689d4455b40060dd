"""What a compiled function without guards may be called with, and of what program it is: ``calls.json`` of an entry.

torch's standalone artifact checks nothing, so this record does: which tensors of the module it takes, by name, and
of what shape and type; the inputs of a call, and how their dimensions may vary; the sources that were traced, and
what they read off the module. Plain data, written by the build and read without torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from model_cache.errors import DamagedError
from model_cache.wheel.patterns import SOME
from model_cache.wheel.strict_json import MAX_INTEGER, Fields, loads

COMPONENT = "torch-standalone"
"""Component of the entries that hold such a function."""

FILE = "calls.json"
ARTIFACT = "standalone.pickle"
"""Names of the record and of what torch unpickles, in one directory of an entry."""

FORMAT = 1
MAX_BYTES = 16 * 1024 * 1024
CONTAINERS = ("tuple", "list", "dict")

_SIZE = re.compile(r"0|[1-9][0-9]{0,18}|[a-z][a-z0-9]{0,9}")
_INTEGER = re.compile(r"0|[1-9][0-9]{0,18}")
_OF_TORCH = re.compile(r"torch\.[a-z][a-z0-9_]{0,29}")
_DEVICE = re.compile(r"cpu|cuda:[0-9]{1,3}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_FUNCTION = re.compile(f"{_MODULE.pattern}:{_MODULE.pattern}")


@dataclass(frozen=True)
class Tensor:
    """One argument. name: in the module, or how the inputs lead to it. dtype and device: as torch writes them.

    shape: sizes as text, or names of dimensions. stride: in elements, as text; empty for a contiguous tensor.
    """

    name: str
    dtype: str
    device: str
    shape: tuple[str, ...]
    stride: tuple[str, ...]


@dataclass(frozen=True)
class Dimension:
    """A size that may vary from `least` to `most`; wherever its name stands it is the same."""

    name: str
    least: int
    most: int


@dataclass(frozen=True)
class Limit:
    """The sizes of these dimensions, multiplied (one may come more than once), are at most `most`."""

    names: tuple[str, ...]
    most: int


@dataclass(frozen=True)
class Owner:
    """An object that the traced code has read: a module, or what an attribute of one leads to.

    path: a module's qualified name, then attributes. type: the object's class. values: what reading an attribute gave,
    as `model_cache.engine.program.value` writes it. objects: what was read and is an owner, by its place in the list.
    """

    path: tuple[str, ...]
    type: str
    values: Mapping[str, str]
    objects: Mapping[str, int]


@dataclass(frozen=True)
class Calls:
    """See the module.

    tensors: the arguments that are the module's, in order. tied: names that are the same tensor as another name.
    inputs, outputs: tuples, lists and dicts around the numbers of `leaves`, or of what is returned: ``{"tuple": [0]}``.
    owners: every submodule, and what else was read. absent: of a class, methods that were read and that no instance
    had replaced, separated by blanks. sources: SHA-256 of the file of each Python module that was traced. functions:
    what ran of them, as ``module:name``. settings: torch's, as `model_cache.engine.program.settings` reads them.
    """

    tensors: tuple[Tensor, ...]
    tied: Mapping[str, str]
    leaves: tuple[Tensor, ...]
    dimensions: tuple[Dimension, ...]
    limits: tuple[Limit, ...]
    inputs: object
    outputs: object
    owners: tuple[Owner, ...]
    absent: Mapping[str, str]
    sources: Mapping[str, str]
    functions: tuple[str, ...]
    settings: Mapping[str, str]

    def to_json_bytes(self) -> bytes:
        """The file's bytes: the same value always gives the same."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, indent=1).encode() + b"\n"


def parse(data: bytes, what: str = FILE) -> Calls:
    """Read and check the file. Raises DamagedError with every problem; an unknown format is told alone."""
    problems: list[str] = []
    f = Fields(loads(data, what, MAX_BYTES), "", problems)
    if f.integer("format") != FORMAT:
        raise DamagedError(f"{what}: its format is not {FORMAT}: install the hatch-model-cache that made the wheel")
    found = Calls(
        tensors=f.objects("tensors", _tensor),
        tied=f.text_mapping("tied"),
        leaves=f.objects("leaves", _tensor, least=1),
        dimensions=f.objects("dimensions", _dimension),
        limits=f.objects("limits", _limit),
        inputs=f.mapping("inputs"),
        outputs=f.mapping("outputs"),
        owners=f.objects("owners", _owner, least=1),
        absent=f.text_mapping("absent"),
        sources=f.text_mapping("sources"),
        functions=f.texts("functions", _FUNCTION),
        settings=f.text_mapping("settings"),
    )
    f.done()
    problems += _inconsistencies(found)
    if problems:
        raise DamagedError(f"{what}: is not valid", problems)
    return found


def _tensor(f: Fields) -> Tensor:
    return Tensor(
        name=f.text("name", SOME),
        dtype=f.text("dtype", _OF_TORCH),
        device=f.text("device", _DEVICE),
        shape=f.texts("shape", _SIZE, unique=False),
        stride=f.texts("stride", _INTEGER, unique=False),
    )


def _dimension(f: Fields) -> Dimension:
    return Dimension(f.text("name", _SIZE), f.integer("least"), f.integer("most"))


def _limit(f: Fields) -> Limit:
    return Limit(f.texts("names", _SIZE, least=1, unique=False), f.integer("most"))


def _owner(f: Fields) -> Owner:
    objects = {name: n for name, n in f.scalar_mapping("objects").items() if isinstance(n, int)}
    return Owner(
        path=f.texts("path", least=1, unique=False),
        type=f.text("type", _MODULE),
        values=f.text_mapping("values"),
        objects=objects,
    )


def _inconsistencies(calls: Calls) -> list[str]:
    """What the parts of a record say against each other."""
    problems = []
    names = {dimension.name for dimension in calls.dimensions}
    for tensor in (*calls.tensors, *calls.leaves):
        unknown = {size for size in tensor.shape if not size.isdigit()} - names
        if unknown:
            problems.append(f"{tensor.name}: there is no dimension {', '.join(sorted(unknown))}")
        if tensor.stride and len(tensor.stride) != len(tensor.shape):
            problems.append(f"{tensor.name}: has {len(tensor.shape)} sizes and {len(tensor.stride)} strides")
    used = {size for tensor in calls.leaves for size in tensor.shape}
    problems += [f"limits: no input has {name}" for limit in calls.limits for name in limit.names if name not in used]
    numbers = sorted(_numbers(calls.inputs))
    if numbers != list(range(len(calls.leaves))):
        problems.append(f"inputs: do not hold each of {len(calls.leaves)} leaves once")
    outputs = sorted(_numbers(calls.outputs))
    if outputs != list(range(len(outputs))):
        problems.append("outputs: do not hold each result once")
    count = len(calls.owners)
    problems += [
        f"owners: {'.'.join(owner.path)} leads to no owner"
        for owner in calls.owners
        if any(not 0 <= n < count for n in owner.objects.values())
    ]
    problems += [f"sources: {name!r:.80} is no name" for name in calls.sources if not _MODULE.fullmatch(name)]
    return problems


def _numbers(node: object) -> list[int]:
    """The numbers in a structure; -1 for what is none."""
    if isinstance(node, int) and not isinstance(node, bool):
        return [node if node <= MAX_INTEGER else -1]
    if isinstance(node, dict) and len(node) == 1:
        [(kind, items)] = node.items()
        if kind == "dict" and isinstance(items, dict):
            return [number for item in items.values() for number in _numbers(item)]
        if kind in CONTAINERS and isinstance(items, list):
            return [number for item in items for number in _numbers(item)]
    return [-1]
