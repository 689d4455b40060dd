"""Why a change that no gate sees can alter no result: found by doing worse, and by watching what the change does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hatch_model_cache.compile.selfcheck import comparison, gates
from hatch_model_cache.compile.selfcheck.ptx import FaultError, machine
from hatch_model_cache.compile.selfcheck.ptx.program import Instruction, Program
from hatch_model_cache.compile.selfcheck.wrapper import Launch
from kernels.mutants import Mutant

UNREAD = "nothing that is stored is computed from it"
MASKED = "replaced by NaN or by a wild number, it changes no bit either: only elements that are masked away have it"
NEGATIVE = "only a negative index has it, and the graph refuses those (replaced by a wild number, it changes no bit)"
NO_RACE = "without the barrier no two threads are at one place of shared memory, which is watched"
NEVER = "no thread comes to it"
SPARE = "with every bit of what the instruction gives inverted, no bit of the results differs"
SAME = "gives the same in every thread of every launch, and depends on its number and on the sizes alone"
ASSERTED = "with an answer that is always yes, no bit differs either, and another assertion stops at the same indices"
ROUNDED = (
    f"the float32 that are rounded to 16 bits differ by at most {comparison.FLOAT32_STEPS} units in the last place, "
    "and all round alike"
)
UNKNOWN = "no reason found"

_ASSIGNMENT = re.compile(r"\s+(\w+) = (.*)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WILD = ('float("nan")', "77777")
_OF_OTHERS = ("ld.global", "ld.shared", "shfl", "ldmatrix", "atom")


def of_source(plain: str, mutant: Mutant, unchanged: Callable[[str], bool]) -> str:
    """Of a change of a source that changes no bit. unchanged: whether a source gives what the unchanged one gives."""
    name = _changed_name(mutant.line)
    if name is not None and name not in _live(plain):
        return UNREAD
    if any(unchanged(text) for text in _wrecked(plain, mutant)):
        return NEGATIVE if name is not None and _for_negative(plain, name) else MASKED
    return UNKNOWN


def _changed_name(line: str) -> str | None:
    found = _ASSIGNMENT.fullmatch(f" {line}")
    return found[1] if found else None


def _live(text: str) -> set[str]:
    """Names that a line which is no assignment reads, directly or through others."""
    body = text[text.index("@triton.jit") :]
    assigned = [found.groups() for line in body.splitlines() if (found := _ASSIGNMENT.fullmatch(line))]
    others = [line for line in body.splitlines() if not _ASSIGNMENT.fullmatch(line)]
    live = {name for line in others for name in _NAME.findall(line)}
    while more := {n for name, value in assigned if name in live for n in _NAME.findall(value)} - live:
        live |= more
    return live


def _wrecked(plain: str, mutant: Mutant) -> Iterator[str]:
    """The source with a wild number in place of the one that was changed, or of the result of the operator."""
    at = next(i for i, (a, b) in enumerate(zip(plain, mutant.text, strict=False)) if a != b)
    end = plain.index("\n", at)
    begin = plain.rindex("\n", 0, at) + 1
    line, place = plain[begin:end], at - begin
    for number in re.finditer(r"(?<![\w.])\d+\.?\d*(?:e-?\d+)?", line):
        if number.start() <= place < number.end():
            for wild in _WILD:
                yield plain[:begin] + line[: number.start()] + wild + line[number.end() :] + plain[end:]
            return
    if found := _ASSIGNMENT.fullmatch(line):
        for worse in (f"({found[2]}) * {_WILD[0]}", f"({found[2]}) * 0 + {_WILD[1]}"):
            yield plain[:begin] + line[: found.start(2)] + worse + plain[end:]


def _for_negative(text: str, name: str) -> bool:
    """Whether a value is, directly or one step on, what an index is replaced by where it is below zero."""
    reading = [name, *re.findall(rf"(\w+) = [^=\n]*\b{name}\b", text)]
    chosen = {found[2]: found[1] for found in re.finditer(r"tl\.where\((\w+), (\w+), ", text)}
    return any(re.search(rf"\b{chosen[n]} = \w+ < 0\n", text) for n in reading if n in chosen)


def of_ptx(changed: Program, plain: Program, launches: Sequence[Launch], indices: Launch, shared: int) -> str:
    """Of a change of a PTX text that changes no bit. indices: the launch for `gates.check_indices`."""
    if len(changed.instructions) < len(plain.instructions):
        return NO_RACE
    [number] = [
        n for n, pair in enumerate(zip(changed.instructions, plain.instructions, strict=True)) if pair[0] != pair[1]
    ]
    seen = [list(_given(program, launches, shared, number)) for program in (changed, plain)]
    if not any(map(len, seen[1])):
        return NEVER
    if _alike(plain, launches, shared, number, np.invert):
        return SPARE
    same = all(np.array_equal(a, b) for a, b in zip(*seen, strict=True))
    if same and not _from_others(plain, plain.instructions[number]):
        return SAME
    if plain.instructions[number].opcode == "setp" and _alike(plain, launches, shared, number, np.ones_like):
        with _Watched(plain.instructions[number], _replacing(np.ones_like)):
            if gates.check_indices(plain, indices, shared) is None:
                return ASSERTED
    return ROUNDED if 0 < _apart(changed, plain, launches, shared) <= comparison.FLOAT32_STEPS else UNKNOWN


def _apart(changed: Program, plain: Program, launches: Sequence[Launch], shared: int) -> int:
    """By how many units in the last place the float32 differ at most that are rounded to 16 bits."""
    most = 0
    for number, instruction in enumerate(plain.instructions):
        if re.fullmatch(r"cvt\.rn\.b?f16(x2)?\.f32", instruction.name):
            pairs = zip(*(_rounded(program, launches, shared, number) for program in (changed, plain)), strict=True)
            most = max([most, *(int(np.abs(a - b).max(initial=0)) for a, b in pairs)])
    return most


def _from_others(program: Program, instruction: Instruction) -> bool:
    """Whether an instruction's value depends on memory, or on another thread."""
    waiting, known = [instruction], set()
    while waiting:
        one = waiting.pop()
        known.add(one)
        if one.name.startswith(_OF_OTHERS):
            return True
        reads = {name for operand in one.operands[1:] for name in re.findall(r"%\w+", operand)} | {one.predicate}
        waiting += [i for i in program.instructions if i not in known and reads & set(_results(i))]
    return False


def _results(instruction: Instruction) -> list[str]:
    """The registers that it writes."""
    if instruction.opcode in ("st", "bar", "bra") or not instruction.operands:
        return []
    return re.findall(r"%\w+", instruction.operands[0])


class _Watched:
    """While it is open, hears of what one instruction gives, and may invert it."""

    def __init__(self, instruction: Instruction, heard: Callable[[Any, str, Any], None]) -> None:
        self._instruction = instruction
        self._heard = heard

    def __enter__(self) -> None:
        self._plain = plain = machine._Threads.execute

        def execute(threads: Any, instruction: Instruction, active: Any) -> None:
            plain(threads, instruction, active)
            if instruction is self._instruction:
                for name in _results(instruction):
                    self._heard(threads, name, active)

        machine._Threads.execute = execute  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        machine._Threads.execute = self._plain  # type: ignore[method-assign]


def _given(program: Program, launches: Sequence[Launch], shared: int, number: int) -> Iterator[Any]:
    """What the instruction gives, in every thread of every launch."""
    for launch in launches:
        values: list[Any] = []
        with _Watched(program.instructions[number], lambda t, name, at, v=values: v.append(t.registers[name][at])):
            gates.run_ptx(program, launch, launch.before, shared)
        yield np.concatenate(values) if values else np.zeros(0)


def _rounded(program: Program, launches: Sequence[Launch], shared: int, number: int) -> Iterator[Any]:
    """The float32 that an instruction rounds, in every thread of every launch, as integers in the values' order."""
    instruction = program.instructions[number]
    for launch in launches:
        values: list[Any] = []

        def heard(threads: Any, _: str, active: Any, values: list[Any] = values) -> None:
            for operand in instruction.operands[1:]:
                bits = threads.read(operand, "b32")[active].astype(np.int64)
                values.append(np.where(bits >> 31, (1 << 31) - bits, bits))

        with _Watched(instruction, heard):
            gates.run_ptx(program, launch, launch.before, shared)
        yield np.concatenate(values) if values else np.zeros(0, np.int64)


def _replacing(worse: Callable[[Any], Any]) -> Callable[[Any, str, Any], None]:
    def replace(threads: Any, name: str, active: Any) -> None:
        value = threads.registers[name]
        threads.registers[name] = np.where(active, worse(value), value)

    return replace


def _alike(program: Program, launches: Sequence[Launch], shared: int, number: int, worse: Callable[[Any], Any]) -> bool:
    """Whether it gives something, and the results are the same with `worse` of that in its place."""
    if not _results(program.instructions[number]):
        return False
    for launch in launches:
        plain = gates.run_ptx(program, launch, launch.before, shared)
        try:
            with _Watched(program.instructions[number], _replacing(worse)):
                found: Mapping[int, Any] = gates.run_ptx(program, launch, launch.before, shared)
        except FaultError:
            return False
        if any(not plain[place].equal(found[place]) for place in plain):
            return False
    return True
