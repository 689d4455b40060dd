"""Runs a program: all threads of a grid in lockstep, one numpy array per register."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from . import FaultError, TrapError, UnsupportedError
from .instructions import DTYPES, form
from .memory import GlobalMemory, SharedMemory
from .numbers import Array
from .program import Instruction, Program

WARP = 32

_LANES_AT_ONCE = 1 << 16
_MOST_STEPS = 2_000_000
_END = 1 << 40  # where a thread is that has ended

_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")
_FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]{8}|[0-9a-fA-F]{16})")
_ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_CACHE_HINT = re.compile(r"L1::\w+|L2::\w+|relaxed|weak|nc|gpu|sys|cta|ca|cg|cs|cv|lu|wb|wt")
_MATRICES = re.compile(r"ldmatrix\.sync\.aligned\.m8n8\.x[124]\.shared\.b16")
_VECTOR = re.compile(r"v([248])")
_WITHOUT_EFFECT = ("createpolicy", "membar", "fence", "griddepcontrol", "discard", "prefetch", "pragma")
"""About caches, and the order of accesses that no other block depends on."""


def run(
    program: Program, grid: tuple[int, int, int], arguments: Sequence[int], memory: GlobalMemory, shared: int = 0
) -> None:
    """Run `program` on a grid, to its end.

    Args:
        program: the kernel.
        grid: blocks in each direction.
        arguments: value of every parameter: addresses, and integers.
        memory: is changed.
        shared: bytes of dynamic shared memory of a block.

    Raises:
        FaultError: if the program does what it must not do.
        UnsupportedError: if it has an instruction that is not known.
    """
    if len(arguments) != len(program.parameters):
        raise FaultError(f"{len(program.parameters)} parameters, {len(arguments)} arguments")
    blocks = grid[0] * grid[1] * grid[2]
    step = max(1, _LANES_AT_ONCE // program.threads)
    with np.errstate(all="ignore"):
        for first in range(0, blocks, step):
            numbers = np.arange(first, min(blocks, first + step))
            _Threads(program, numbers, grid, arguments, memory, shared).run()


class _Threads:
    """The threads of some blocks."""

    def __init__(
        self,
        program: Program,
        blocks: Array,
        grid: tuple[int, int, int],
        arguments: Sequence[int],
        memory: GlobalMemory,
        shared: int,
    ) -> None:
        threads = program.threads
        self.program = program
        self.memory = memory
        self.shared = SharedMemory(len(blocks), shared)
        self.arguments = dict(zip(program.parameters, arguments, strict=True))
        self.lanes = len(blocks) * threads
        self.block = np.repeat(np.arange(len(blocks)), threads)
        self.warp = np.arange(self.lanes) // min(WARP, threads)
        self.registers: dict[str, Array] = {}
        thread = np.tile(np.arange(threads, dtype=np.uint32), len(blocks))
        number = np.repeat(blocks.astype(np.uint32), threads)
        zero = np.zeros(self.lanes, np.uint32)
        x, y, z = (np.uint32(count) for count in grid)
        self.special = {
            "%tid.x": thread,
            "%tid.y": zero,
            "%tid.z": zero,
            "%laneid": thread % np.uint32(WARP),
            "%ctaid.x": number % x,
            "%ctaid.y": number // x % y,
            "%ctaid.z": number // (x * y),
            "%ntid.x": zero + np.uint32(threads),
            "%nctaid.x": zero + x,
            "%nctaid.y": zero + y,
            "%nctaid.z": zero + z,
        }
        self.at = np.zeros(self.lanes, np.int64)  # the next instruction of each thread

    def run(self) -> None:
        """Always the earliest instruction that a thread waits at: so threads that parted meet again."""
        instructions = self.program.instructions
        for _ in range(_MOST_STEPS):
            here = int(self.at.min())
            if here >= len(instructions):
                return
            active = self.at == here
            instruction = instructions[here]
            self.at[active] = here + 1
            if instruction.predicate is not None:
                active = active & (self.read(instruction.predicate, "pred") != instruction.negated)
            if active.any():
                self.execute(instruction, active)
        raise FaultError("it does not end")

    def execute(self, instruction: Instruction, active: Array) -> None:
        special = _SPECIAL.get(instruction.opcode)
        if special is not None:
            special(self, instruction, active)
            return
        if instruction.opcode == "mov" and "{" in "".join(instruction.operands):
            self.move_packed(instruction, active)
            return
        known = form(instruction.name)
        result, *sources = instruction.operands
        if len(sources) != len(known.sources):
            raise UnsupportedError(f"{instruction.name} with {len(sources)} sources")
        values = [self.read(source, kind) for source, kind in zip(sources, known.sources, strict=True)]
        self.write(result, known.compute(*values), known.result, active)

    def read(self, operand: str, kind: str) -> Array:
        """An operand's value in every thread, as `kind`. A wider register is cut, as ld, st and cvt allow."""
        dtype = np.dtype(DTYPES[kind])
        if (value := self.special.get(operand)) is None and operand in self.program.registers:
            value = self.registers.get(operand)
            if value is None:
                raise FaultError(f"{operand} is read before it is written")
        if value is not None:
            if dtype == np.bool_ or value.dtype == np.bool_:
                if dtype != value.dtype:
                    raise FaultError(f"{operand} is no {kind}")
                return value
            if value.dtype.itemsize < dtype.itemsize:
                raise FaultError(f"{operand} is narrower than {kind}")
            return value.astype(f"u{dtype.itemsize}").view(dtype)
        return np.full(self.lanes, self._immediate(operand, dtype)).view(dtype)

    def _immediate(self, operand: str, dtype: np.dtype[np.generic]) -> np.generic:
        if operand in self.program.symbols:
            operand = "0"  # the one block of shared memory; other symbols are texts of assertions
        if dtype == np.bool_:
            return np.bool_(operand == "1")
        bits = 8 * dtype.itemsize
        if _INTEGER.fullmatch(operand):
            value = int(operand.rstrip("U"), 0)
        elif found := _FLOAT.fullmatch(operand):
            value = int(found[2], 16)
            if (found[1] in "fF") != (bits == 32):
                raise UnsupportedError(f"{operand} of {bits} bits")
        else:
            raise UnsupportedError(f"operand {operand}")
        unsigned: np.generic = np.dtype(f"u{dtype.itemsize}").type(value & ((1 << bits) - 1))
        return unsigned

    def write(self, register: str, value: Array, kind: str, active: Array) -> None:
        """Give `register` a value in the active threads; a wider register is extended by sign or zeros."""
        if register == "_":
            return
        width = _width(self.program, register)
        if kind == "pred":
            value = value.astype(np.bool_)
        else:
            value = np.ascontiguousarray(value).astype(DTYPES[kind], copy=False)
            if kind[0] == "s" and width > 8 * value.dtype.itemsize:
                value = value.astype(f"i{width // 8}")
            value = value.view(f"u{value.dtype.itemsize}").astype(f"u{width // 8}")
        before = self.registers.get(register)
        if before is None:
            before = np.zeros(self.lanes, value.dtype)
        self.registers[register] = value if active.all() else np.where(active, value, before)

    def move_packed(self, instruction: Instruction, active: Array) -> None:
        """``mov.b64 %rd1, {%r1, %r2}`` and the other way round; the first is the lowest."""
        kind = instruction.modifiers[-1]
        result, source = instruction.operands
        if kind not in ("b32", "b64", "b16") or len(instruction.modifiers) != 1:
            raise UnsupportedError(instruction.name)
        bits = int(kind[1:])
        parts = _list(source if source.startswith("{") else result)
        part = f"b{bits // len(parts)}"
        wide = DTYPES[kind]
        if result.startswith("{"):
            value = self.read(source, kind)
            for place, register in enumerate(parts):
                piece = (value >> wide(place * bits // len(parts))).astype(DTYPES[part])
                self.write(register, piece, part, active)
            return
        joined = np.zeros(self.lanes, wide)
        for place, register in enumerate(parts):
            joined |= self.read(register, part).astype(wide) << wide(place * bits // len(parts))
        self.write(result, joined, kind, active)

    def load(self, instruction: Instruction, active: Array) -> None:
        space, count, kind = _access(instruction)
        registers, address = _list(instruction.operands[0]), instruction.operands[1]
        if space == "param":
            name = address.strip("[] ")
            if name not in self.arguments:
                raise UnsupportedError(f"{instruction.name} {address}")
            bits = 8 * np.dtype(DTYPES[kind]).itemsize
            value = np.full(self.lanes, self.arguments[name] & ((1 << bits) - 1), f"u{bits // 8}")
            self.write(registers[0], value.view(DTYPES[kind]), kind, active)
            return
        size = np.dtype(DTYPES[kind]).itemsize
        addresses = self.address(address, space)[active]
        if space == "global":
            rows = self.memory.load(addresses, count * size)
        else:
            rows = self.shared.load(self.block[active], self.warp[active], addresses, count * size)
        for place, register in enumerate(registers):
            value = np.zeros(self.lanes, DTYPES[kind])
            piece = np.ascontiguousarray(rows[:, place * size : (place + 1) * size])
            value[active] = piece.view(DTYPES[kind])[:, 0]
            self.write(register, value, kind, active)

    def store(self, instruction: Instruction, active: Array) -> None:
        space, _, kind = _access(instruction)
        if space == "param":
            return  # an argument of the function that ends the program when an assertion fails
        values = [self.read(source, kind)[active] for source in _list(instruction.operands[1])]
        addresses = self.address(instruction.operands[0], space)[active]
        rows = np.ascontiguousarray(np.stack(values, axis=1)).view(np.uint8)
        if space == "global":
            self.memory.store(addresses, rows)
        else:
            self.shared.store(self.block[active], self.warp[active], addresses, rows)

    def address(self, operand: str, space: str) -> Array:
        found = _ADDRESS.fullmatch(operand)
        if found is None:
            raise UnsupportedError(f"address {operand}")
        base, offset = found[1], int(found[2] or 0)
        narrow = space == "shared" and self.program.registers.get(base) == "b32"
        addresses: Array = self.read(base, "u32" if narrow else "u64").astype(np.uint64)
        return addresses + np.uint64(offset & ((1 << 64) - 1))

    def shuffle(self, instruction: Instruction, active: Array) -> None:
        """``shfl.sync``: a value of another lane of the warp, the own one where that is out of range."""
        if instruction.name not in (
            "shfl.sync.bfly.b32",
            "shfl.sync.idx.b32",
            "shfl.sync.down.b32",
            "shfl.sync.up.b32",
        ):
            raise UnsupportedError(instruction.name)
        result, source, by, limits, members = instruction.operands
        if "|" in result or self._immediate(members, np.dtype(np.uint32)) != 0xFFFFFFFF:
            raise UnsupportedError(f"{instruction.name} with {result}, members {members}")
        mode = instruction.modifiers[1]
        value = self.read(source, "b32")
        lane = np.arange(self.lanes, dtype=np.int64) % WARP
        other, limit = (self.read(operand, "u32").astype(np.int64) for operand in (by, limits))
        other, clamp, segment = other & 31, limit & 31, limit >> 8 & 31
        last = (lane & segment) | (clamp & ~segment)
        wanted = {
            "bfly": lane ^ other,
            "idx": (lane & segment) | (other & ~segment),
            "down": lane + other,
            "up": lane - other,
        }[mode]
        inside = wanted >= last if mode == "up" else wanted <= last
        chosen = np.arange(self.lanes) - lane + np.where(inside, wanted, lane)
        if not active[chosen[active]].all():
            raise FaultError("a shuffle reads a lane that does not take part")
        self.write(result, value[chosen], "b32", active)

    def load_matrices(self, instruction: Instruction, active: Array) -> None:
        """``ldmatrix``: 8 by 8 values of 16 bits, a row at each lane's address; a lane gets two of row lane / 4."""
        found = _MATRICES.fullmatch(instruction.name)
        if found is None:
            raise UnsupportedError(instruction.name)
        warps: Array = active.reshape(-1, WARP)
        if (warps.any(axis=1) != warps.all(axis=1)).any():
            raise FaultError("a matrix is loaded by a part of a warp")
        addresses = self.address(instruction.operands[1], "shared")
        lane = np.arange(self.lanes) % WARP
        first = np.arange(self.lanes) - lane
        for number, register in enumerate(_list(instruction.operands[0])):
            row = first + 8 * number + lane // 4
            places = addresses[row] + (lane % 4 * 4).astype(np.uint64)
            rows = self.shared.load(self.block[active], self.warp[active], places[active], 4)
            value = np.zeros(self.lanes, np.uint32)
            value[active] = rows.view(np.uint32)[:, 0]
            self.write(register, value, "b32", active)

    def barrier(self, instruction: Instruction, active: Array) -> None:
        if instruction.name == "bar.warp.sync":
            return
        if instruction.name not in ("bar.sync", "barrier.sync", "barrier.sync.aligned") or instruction.operands != (
            "0",
        ):
            raise UnsupportedError(f"{instruction.name} {', '.join(instruction.operands)}")
        met = np.unique(self.block[active])
        waiting = np.isin(self.block, met) & ~active & (self.at < _END)
        if waiting.any():
            raise FaultError("a barrier that some threads of the block do not reach")
        self.shared.barrier(met)

    def branch(self, instruction: Instruction, active: Array) -> None:
        label = instruction.operands[0]
        if label not in self.program.labels or not {*instruction.modifiers} <= {"uni"}:
            raise UnsupportedError(str(instruction))
        self.at[active] = self.program.labels[label]

    def end(self, _: Instruction, active: Array) -> None:
        self.at[active] = _END

    def fail(self, instruction: Instruction, _: Array) -> None:
        raise TrapError("an assertion of the kernel fails" if instruction.opcode == "call" else instruction.opcode)

    def nothing(self, instruction: Instruction, active: Array) -> None:
        if instruction.opcode == "createpolicy":
            self.write(instruction.operands[0], np.zeros(self.lanes, np.uint64), "b64", active)


_SPECIAL: dict[str, Callable[[_Threads, Instruction, Array], None]] = {
    "bar": _Threads.barrier,
    "barrier": _Threads.barrier,
    "bra": _Threads.branch,
    "call": _Threads.fail,
    "exit": _Threads.end,
    "ld": _Threads.load,
    "ldmatrix": _Threads.load_matrices,
    "ret": _Threads.end,
    "shfl": _Threads.shuffle,
    "st": _Threads.store,
    "trap": _Threads.fail,
    **dict.fromkeys(_WITHOUT_EFFECT, _Threads.nothing),
}

KNOWN_SPECIAL = tuple(sorted(_SPECIAL))
"""Opcodes that are the machine's own."""


def _access(instruction: Instruction) -> tuple[str, int, str]:
    """Space, number of values and their type of a load or store."""
    *modifiers, kind = instruction.modifiers
    space, count = "", 1
    for modifier in modifiers:
        if modifier in ("global", "shared", "shared::cta", "param"):
            space = modifier.removesuffix("::cta")
        elif vector := _VECTOR.fullmatch(modifier):
            count = int(vector[1])
        elif not _CACHE_HINT.fullmatch(modifier):
            raise UnsupportedError(instruction.name)
    if not space or kind not in DTYPES or kind == "pred":
        raise UnsupportedError(instruction.name)
    return space, count, kind


def _list(operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{} ").split(",")]


def _width(program: Program, register: str) -> int:
    kind = program.registers.get(register)
    if kind is None:
        raise UnsupportedError(f"register {register}")
    return 1 if kind == "pred" else int(kind[1:])
