"""What a pickle would import, read off its opcodes: nothing is unpickled, nothing imported.

Bytes that a pickle holds are looked into as well, since engines keep pickles in pickles (vLLM's AOT file holds the
graph, the guards and each compiled part as bytes). `allowed` says which globals the engine's own artifacts need.

This is a report and a tripwire, no sandbox: a pickle may hold the bytecode of functions, which is code too and is not
judged, and so is the source text that Inductor writes and compiles again when it loads.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_BYTES = 256 * 1024 * 1024
"""A larger file is not read, and counts as not understood: nested pickles are looked at in memory."""

MAX_DEPTH = 8
MAX_OPCODES = 20_000_000
_CHECK_EVERY = 1 << 16
MAX_NAMES = 10_000
MIN_NESTED_BYTES = 4
MAX_TUPLE = 200
"""Values in a tuple, those of the tuples in it included, that are followed: no call that matters has more."""

MAX_NAME = 1000
_MAX_TEXT = 300

_IDENTIFIER = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_STRINGS = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"})
_TEXTS = _STRINGS | {"BINUNICODE8"}
_BYTES = frozenset({"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"})
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_EXTENSIONS = frozenset({"EXT1", "EXT2", "EXT4"})


class Global(NamedTuple):
    """A name that a pickle would import. name: may hold dots (an attribute of an attribute)."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass
class Report:
    """What the pickles of one file would do. pickles: how many were found, nested ones included.

    globals: name → how often it is imported. attributes: "object.attribute" of each `getattr` that is called, the
    object being an imported name, or `name()` for what calling it gives. calls: each call of a name in CAREFUL, with
    its arguments as far as they are known. loads: how often the pickle itself unpickles bytes. problems: what is not
    clear.
    """

    pickles: int = 0
    globals: dict[Global, int] = field(default_factory=dict)
    attributes: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    loads: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Count what another report has found as well."""
        self.pickles += other.pickles
        self.loads += other.loads
        for name, count in other.globals.items():
            self.globals[name] = self.globals.get(name, 0) + count
        for mine, theirs in ((self.attributes, other.attributes), (self.calls, other.calls)):
            for text, count in theirs.items():
                mine[text] = mine.get(text, 0) + count
        self.problems += other.problems


_Value = object


class _Mark:
    """Where a tuple, list or dict begins on the stack."""


class _Opaque:
    """A value that only running the pickle would tell."""


class _Made(NamedTuple):
    """What calling a name gave: an object of a class, mostly."""

    by: Global


class _Tuple:
    """A short tuple; size: with all that is in it, written out.

    Compared and hashed as a mere object: a tuple that hostile opcodes nest a million times over, or that holds one
    other twice, sixty levels deep, would take the stack or for ever.
    """

    __slots__ = ("items", "size")

    def __init__(self, items: list[_Value], size: int) -> None:
        self.items = tuple(items)
        self.size = size


class _Bytes(NamedTuple):
    """Bytes in the pickle. is_pickle: whether they were read as one to the end."""

    is_pickle: bool


_MARK = _Mark()
_OPAQUE = _Opaque()


class _Budget:
    """Opcodes, and values looked at for one, that are left for one file: hostile bytes may not keep a host busy."""

    def __init__(self, check: Callable[[], None] | None) -> None:
        self.left = MAX_OPCODES
        self._check = check

    def spend(self, cost: int = 1) -> None:
        before = self.left // _CHECK_EVERY
        self.left -= cost
        if self.left < 0:
            raise _NotUnderstoodError(f"holds more than {MAX_OPCODES} opcodes")
        if self._check and self.left // _CHECK_EVERY != before:
            self._check()


class _NotUnderstoodError(Exception):
    """The opcodes do not make a pickle, or do what no engine's pickle does."""


def report(data: bytes, check: Callable[[], None] | None = None) -> Report:
    """What the pickle in `data` would import. A file that is not one pickle from end to end is a problem.

    check: called now and then; what it raises (a deadline) ends the work.
    """
    found = Report()
    if len(data) > MAX_BYTES:
        found.problems.append(f"is larger than {MAX_BYTES} bytes")
        return found
    budget = _Budget(check)
    try:
        _scan(data, found, budget, 0)
    except _NotUnderstoodError as error:
        found.problems.append(str(error))
    return found


def _scan(data: bytes, found: Report, budget: _Budget, depth: int) -> None:
    """Read one pickle that fills `data`. Raises _NotUnderstoodError; what was seen before that is in `found`."""
    machine = _Machine(found, budget, depth)
    end = 0
    try:
        for opcode, argument, position in pickletools.genops(data):
            budget.spend()
            machine.step(opcode, argument)
            end = (position or 0) + 1
    except (ValueError, UnicodeDecodeError, OverflowError, IndexError, RecursionError) as error:
        raise _NotUnderstoodError(f"is no pickle: {str(error)[:120]}") from None
    found.pickles += 1
    if end != len(data):
        raise _NotUnderstoodError(f"has {len(data) - end} bytes after its end")


class _Machine:
    """Follows the stack and the memo as the unpickler would, with strings and names as the only known values."""

    def __init__(self, found: Report, budget: _Budget, depth: int) -> None:
        self.found = found
        self.budget = budget
        self.depth = depth
        self.stack: list[_Value] = []
        self.memo: dict[int, _Value] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        name = opcode.name
        if name in _TEXTS:
            self.stack.append(str(argument))
        elif name in _BYTES:
            assert isinstance(argument, (bytes, bytearray))
            self.stack.append(_Bytes(self._nested(bytes(argument))))
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self._top()
        elif name in _PUTS:
            assert isinstance(argument, int)
            self.memo[argument] = self._top()
        elif name in _GETS:
            assert isinstance(argument, int)
            if argument not in self.memo:
                raise _NotUnderstoodError("uses a value that it has not put aside")
            self.stack.append(self.memo[argument])
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name == "DUP":
            self.stack.append(self._top())
        elif name == "POP":
            self._pop()
        elif name == "POP_MARK":
            self._to_mark()
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            self._tuple(name)
        else:
            self._import(opcode, name, argument)

    def _import(self, opcode: pickletools.OpcodeInfo, name: str, argument: object) -> None:
        if name == "GLOBAL":
            module, _, attribute = str(argument).partition(" ")
            self.stack.append(self._global(module, attribute))
        elif name == "STACK_GLOBAL":
            last, first = self._pop(), self._pop()
            self.stack.append(self._global(first, last))
        elif name == "INST":
            module, _, attribute = str(argument).partition(" ")
            self._to_mark()
            self._global(module, attribute)
            self.stack.append(_OPAQUE)
        elif name in _EXTENSIONS:
            raise _NotUnderstoodError("names a global by a number (copyreg extension)")
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = self._pop(), self._pop()
            self.stack.append(self._call(function, arguments))
        elif name == "NEWOBJ_EX":
            self._pop()
            arguments, function = self._pop(), self._pop()
            self.stack.append(self._call(function, arguments))
        elif name == "BUILD":
            self._handed_on([self._pop()])  # the object's state; the object stays
            self._top()
        else:
            self._generic(opcode)

    def _generic(self, opcode: pickletools.OpcodeInfo) -> None:
        """Any other opcode, as pickletools declares it: what it takes, what it leaves."""
        before = opcode.stack_before
        taken: list[_Value] = []
        if pickletools.markobject in before:
            taken = self._to_mark()
            before = before[: before.index(pickletools.markobject)]
        taken += [self._pop() for _ in before]
        self._handed_on(taken)
        self.stack += [_OPAQUE] * len(opcode.stack_after)

    def _top(self) -> _Value:
        if not self.stack:
            raise _NotUnderstoodError("takes a value from an empty stack")
        return self.stack[-1]

    def _pop(self) -> _Value:
        value = self._top()
        self.stack.pop()
        return value

    def _to_mark(self) -> list[_Value]:
        items: list[_Value] = []
        while (value := self._pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def _tuple(self, name: str) -> None:
        items = self._to_mark() if name == "TUPLE" else [self._pop() for _ in range(int(name[-1]))][::-1]
        size = 1 + sum(item.size if isinstance(item, _Tuple) else 1 for item in items)
        # Only short ones matter: the arguments of a call.
        if len(items) > 3 or size > MAX_TUPLE:
            self._handed_on(items)
            self.stack.append(_OPAQUE)
        else:
            self.stack.append(_Tuple(items, size))

    def _global(self, module: _Value, name: _Value) -> _Value:
        if not isinstance(module, str) or not isinstance(name, str):
            raise _NotUnderstoodError("imports a name that it computes")
        if max(len(module), len(name)) > MAX_NAME or not all(map(_IDENTIFIER.fullmatch, (module, name))):
            raise _NotUnderstoodError(f"imports {f'{module[:80]}.{name[:80]}'!r:.80}, which is no name")
        found = Global(module, name)
        if len(self.found.globals) >= MAX_NAMES and found not in self.found.globals:
            raise _NotUnderstoodError(f"imports more than {MAX_NAMES} names")
        self.found.globals[found] = self.found.globals.get(found, 0) + 1
        return found

    def _call(self, function: _Value, arguments: _Value) -> _Value:
        items = arguments.items if isinstance(arguments, _Tuple) else None
        if items is None:
            self._handed_on([arguments])
        elif function not in _LOADS and function != _GETATTR:
            self._handed_on(items)
        if function == _GETATTR:
            match items:
                case (Global() | _Made() as of, str(name)):
                    self._count(self.found.attributes, f"{_shown(of)}.{name[:_MAX_TEXT]}")
                case _:
                    self._problem("calls getattr with something that it computes")
        elif function in _LOADS:
            match items:
                case (_Bytes(is_pickle=True),):
                    self.found.loads += 1
                case _:
                    self._problem("unpickles bytes that it computes, or that are no pickle")
        elif isinstance(function, Global) and function.module.startswith(_EVALUATING) and function.name != "Symbol":
            texts = [value for value in items or () if isinstance(value, str)]
            self.budget.spend(sum(map(len, texts)) >> 10)
            if any("(" in text for text in texts):
                self._problem(f"has {function} evaluate a text")
        elif function in CAREFUL:
            self.budget.spend(MAX_TUPLE)
            self._count(self.found.calls, f"{_shown(function)}{_shown(arguments)}")
        return _Made(function) if isinstance(function, Global) else _OPAQUE

    def _handed_on(self, values: Iterable[_Value]) -> None:
        """A careful name as a mere value could be called by somebody else, with arguments that nobody has seen."""
        for value in values:
            self.budget.spend()
            if isinstance(value, _Tuple):
                self._handed_on(value.items)
            elif value in CAREFUL:
                self._problem(f"hands {value} on instead of calling it")

    def _count(self, counts: dict[str, int], text: str) -> None:
        if len(counts) < MAX_NAMES:
            counts[text[:_MAX_TEXT]] = counts.get(text[:_MAX_TEXT], 0) + 1
        else:
            self._problem(f"does more than {MAX_NAMES} different things")

    def _problem(self, text: str) -> None:
        if text not in self.found.problems:
            self.found.problems.append(text)

    def _nested(self, data: bytes) -> bool:
        """Look for a pickle in bytes; whether they are one from end to end.

        The unpickler runs opcodes as it meets them, so one that breaks off later has run all the same: what it would
        have imported until then counts when the bytes begin like a pickle of protocol 2 or newer.
        """
        if len(data) < MIN_NESTED_BYTES:
            return False
        announced = data[0] == 0x80 and 2 <= data[1] <= 5
        if self.depth >= MAX_DEPTH:
            raise _NotUnderstoodError(f"holds bytes in bytes, deeper than {MAX_DEPTH} levels")
        inner = Report()
        try:
            _scan(data, inner, self.budget, self.depth + 1)
        except _NotUnderstoodError as error:
            if not announced and not any(_IDENTIFIER.fullmatch(name.module) for name in inner.globals):
                return False
            inner.problems.append(f"bytes that begin like a pickle: {error}")
            self.found.add(inner)
            return False
        self.found.add(inner)
        return True


def _shown(value: _Value) -> str:
    if isinstance(value, Global):
        return str(value)
    if isinstance(value, _Made):
        return f"{value.by}()"
    if isinstance(value, str):
        return repr(value[:_MAX_TEXT])
    return f"({', '.join(map(_shown, value.items))})" if isinstance(value, _Tuple) else "…"


_GETATTR = Global("builtins", "getattr")
_LOADS = (Global("_pickle", "loads"), Global("pickle", "loads"))

_EVALUATING = ("sympy.", "torch.utils._sympy.")
"""Packages whose functions take a text for a formula and evaluate it (sympy.sympify)."""

CAREFUL = frozenset(
    {
        _GETATTR,
        *_LOADS,
        Global("_functools", "reduce"),
        Global("builtins", "type"),
        Global("dill._dill", "_create_namedtuple"),
        Global("dill._dill", "_eval_repr"),
        Global("dill._dill", "_load_type"),
    }
)
"""Names that engines' own artifacts need and that can reach anything, given the right argument: they may only be
called, and only with arguments that are written out in the pickle. `_eval_repr` is eval, `_create_namedtuple` imports a
module, `_load_type` knows FunctionType and CodeType, `reduce` calls what it is given."""
