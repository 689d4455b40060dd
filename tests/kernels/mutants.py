"""Single changes of a kernel's source or PTX: one constant, or one operator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SOURCE_LINE = re.compile(r"\s+(tmp|x\d|tl\.store|r0_\d|xindex|xmask|_tmp)")
_NUMBER = re.compile(r"(?<![\w.])(\d+\.?\d*(?:e-?\d+)?)(?![\w.]*\()")
_OPERATORS = (
    *((" + tmp", " - tmp"), (" * tmp", " + tmp"), (" - tmp", " + tmp"), (" / tmp", " * tmp"), (" < tmp", " <= tmp")),
    *((">= tmp", "> tmp"), ("= -tmp", "= tmp"), ("rsqrt(", "sqrt("), (", xmask)", ", None)"), (" % ", " // ")),
)
_INTEGER = re.compile(
    r"^(\t(?:shl|shr|and|or|add|sub|mul|mad|bfe|setp|fma|mov|selp|ld\.global|st\.global)[\w.:]*\s.*[ ,])(-?\d+)(;.*)$"
)
_FLOAT = re.compile(r"0f([0-9A-F]{8})")
_EXCHANGE = re.compile(r"(shfl\.sync\.bfly\.b32 \t%\w+, %\w+, )(\d+)(,)")
_PACK = re.compile(r"^(\tcvt\.rn\.bf16x2\.f32 \t%\w+, )(%\w+), (%\w+);")
_OPCODES = (
    *(("\tadd.f32", "\tsub.f32"), ("\tmul.f32", "\tadd.f32"), ("setp.lt", "setp.le"), ("setp.ge", "setp.gt")),
    *(("\tdiv.full.f32", "\tmul.f32"), ("\tneg.f32", "\tabs.f32"), ("\tor.pred", "\tand.pred"), ("bar.sync \t0", "")),
)


@dataclass(frozen=True)
class Mutant:
    """The whole text with one change; what: the change in words, line: the line before it."""

    text: str
    what: str
    line: str


def of_source(text: str) -> Iterator[Mutant]:
    """Every single change of the body of a Triton kernel (text: any program that holds it once)."""
    start = text.index("@triton.jit")
    at = 0
    for line in text.splitlines(keepends=True):
        begin, at = at, at + len(line)
        if begin < start or not _SOURCE_LINE.match(line) or "device_assert" in line:
            continue
        for found in _NUMBER.finditer(line):
            if "tl.full([" in line and found.start() < line.index("]"):
                continue  # a shape
            if "[:, None]" in line and found.start() > line.index("["):
                continue
            old = found[1]
            new = repr(float(old) * 1.5 or 1.0) if "." in old or "e" in old else str(int(old) + 1)
            yield _changed(text, begin + found.start(), old, new, line)
        for old, new in _OPERATORS:
            if (place := line.find(old)) >= 0:
                yield _changed(text, begin + place, old, new, line)


def of_ptx(text: str) -> Iterator[Mutant]:
    """Every single change of the instructions of a kernel."""
    at = 0
    body = text.index("\n{")
    for line in text.splitlines(keepends=True):
        begin, at = at, at + len(line)
        if begin < body:
            continue
        if (found := _INTEGER.match(line.rstrip("\n"))) and "createpolicy" not in line:
            yield _changed(text, begin + found.start(2), found[2], str(int(found[2]) + 1), line)
        for number in _FLOAT.finditer(line):
            if int(number[1], 16):
                yield _changed(text, begin + number.start(1), number[1], f"{int(number[1], 16) ^ 0x00400000:08X}", line)
        if found := _EXCHANGE.search(line):
            yield _changed(text, begin + found.start(2), found[2], str(int(found[2]) * 2 % 32 or 1), line)
        if found := _PACK.match(line):
            old = f"{found[2]}, {found[3]}"
            if found[2] != found[3]:
                yield _changed(text, begin + found.start(2), old, f"{found[3]}, {found[2]}", line)
        for old, new in _OPCODES:
            if (place := line.find(old)) >= 0:
                yield _changed(text, begin + place, old, new, line)


def _changed(text: str, at: int, old: str, new: str, line: str) -> Mutant:
    assert text.startswith(old, at)
    what = f"{old.strip()} → {new.strip() or 'nothing'}"
    return Mutant(text[:at] + new + text[at + len(old) :], what, line.strip())
