"""A PTX text as data: parameters, registers, labels and instructions of its one kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from . import UnsupportedError

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_ENTRY = re.compile(r"\.visible \.entry ([\w$]+)\((.*?)\)([^{]*)\{(.*)\}", re.S)
_PARAMETER = re.compile(r"\.param \.(\w+)[^,]*?([\w$]+_param_\d+)")
_THREADS = re.compile(r"\.reqntid (\d+)(?:, 1, 1)?\s*$", re.M)
_REGISTERS = re.compile(r"\.reg \.(\w+)\s+([%\w$]+)(?:<(\d+)>)?")
_BEFORE = re.compile(r"(?:(\$?[\w$]+):(?!:)|[{}])\s*")
"""What may stand before an instruction: a label, or the bounds of a block."""
_STATEMENT = re.compile(r"(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w.:]*)(?:\s+(.*))?", re.S)
_SYMBOL = re.compile(r"^\s*(?:\.(?:extern|visible) )?\.(?:global|shared) [^;=]*?\s([\w$]+)\s*(?:\[\d*\])?\s*[;=]", re.M)


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    name: as written, ``mad.wide.s32``; opcode: ``mad``; modifiers: the rest; operands: as written, ``{%r1, %r2}`` being
    one; predicate: register that must be true, or false if negated; None for an instruction that always runs.
    """

    name: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    predicate: str | None = None
    negated: bool = False

    def __str__(self) -> str:
        guard = "" if self.predicate is None else f"@{'!' if self.negated else ''}{self.predicate} "
        return f"{guard}{self.name} {', '.join(self.operands)}".strip()


@dataclass(frozen=True)
class Program:
    """One kernel. parameters: name → type; threads: in a block; registers: name → type; labels: name → index of the
    instruction; symbols: variables whose address an instruction may take."""

    name: str
    parameters: Mapping[str, str]
    threads: int
    registers: Mapping[str, str]
    labels: Mapping[str, int]
    symbols: frozenset[str]
    instructions: tuple[Instruction, ...]


def parse(text: str) -> Program:
    """Read the PTX of one kernel.

    Raises:
        UnsupportedError: if it holds another number of kernels, several dimensions of threads, or a statement of no
            known form.
    """
    text = _COMMENT.sub("", text)
    entry = _ENTRY.search(text)
    if entry is None or text.count(".entry") != 1:
        raise UnsupportedError("a PTX text without exactly one kernel")
    name, parameters, directives, body = entry.groups()
    threads = _THREADS.search(directives)
    if threads is None:
        raise UnsupportedError("a kernel without .reqntid for one dimension")
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    for statement in _statements(body):
        while found := _BEFORE.match(statement):
            if found[1]:
                labels[found[1]] = len(instructions)
            statement = statement[found.end() :]
        if statement and not statement.startswith("."):
            instructions.append(_instruction(statement))
    return Program(
        name=name,
        parameters={parameter: kind for kind, parameter in _PARAMETER.findall(parameters)},
        threads=int(threads[1]),
        registers=dict(_registers(body)),
        labels=labels,
        symbols=frozenset(_SYMBOL.findall(text)),
        instructions=tuple(instructions),
    )


def _statements(body: str) -> Iterator[str]:
    """What stands between semicolons. Blocks are flattened: a call's, and those of inline assembly."""
    body = re.sub(r"^\s*\.(loc|file|section)\b[^\n]*$", "", body, flags=re.M)
    for part in body.split(";"):
        if statement := " ".join(part.split()):
            yield statement


def _instruction(statement: str) -> Instruction:
    found = _STATEMENT.fullmatch(statement)
    if found is None:
        raise UnsupportedError(f"statement {statement!r:.80}")
    negated, predicate, name, operands = found.groups()
    opcode, *modifiers = name.split(".")
    return Instruction(name, opcode, tuple(modifiers), tuple(_operands(operands or "")), predicate, bool(negated))


def _operands(text: str) -> Iterator[str]:
    """Split at commas that are outside brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if last := text[start:].strip():
        yield last


def _registers(body: str) -> Iterator[tuple[str, str]]:
    for kind, name, count in _REGISTERS.findall(body):
        if count:
            yield from ((f"{name}{number}", kind) for number in range(int(count)))
        else:
            yield name, kind
