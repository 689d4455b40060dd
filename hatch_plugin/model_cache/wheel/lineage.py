"""What the kernels of a wheel were made from, as its manifest has it; the texts themselves are in no engine's cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model_cache.wheel.patterns import IDENTIFIER, SHA256, SOME, VERSION, WORD
from model_cache.wheel.strict_json import Fields


@dataclass(frozen=True)
class Lineage:
    """What one cubin was made from.

    source: SHA-256 of the module that Inductor generated, None for a kernel that is not Inductor's; config: the values
    of its configuration (block sizes), with warps per block and pipeline stages; ptx: SHA-256 of its PTX; ptxas and
    flags: the assembler's version and arguments.
    """

    source: str | None
    config: Mapping[str, int]
    warps: int
    stages: int
    ptx: str
    ptxas: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of a region; or a size (dtype "int"), or something else that is handed through ("object").

    dtype: torch's name; shape, strides: numbers, and for what varies the name of a symbol.
    """

    dtype: str
    shape: tuple[str, ...]
    strides: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A call of a library's operator in a region. writes: numbers of the arguments that it writes to."""

    operator: str
    writes: tuple[int, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Region:
    """One graph that Inductor compiled.

    graph, wrapper: SHA-256 of what it was given and of the program it wrote; inputs: of the graph; calls: of operators
    that are not torch's own, in the graph's order.
    """

    graph: str
    wrapper: str
    inputs: tuple[Value, ...]
    calls: tuple[Call, ...]
    target: str


def read_lineage(f: Fields) -> Lineage:
    """Read a kernel's lineage."""
    config = f.mapping("config")
    table = Fields(config, f.where("config"), f.problems)
    return Lineage(
        source=f.optional_text("source", SHA256),
        config={name: table.integer(name) for name in config},
        warps=f.integer("warps", 1),
        stages=f.integer("stages"),
        ptx=f.text("ptx", SHA256),
        ptxas=f.text("ptxas", VERSION),
        flags=f.texts("flags", SOME, unique=False),
    )


def read_region(f: Fields) -> Region:
    """Read a region."""
    return Region(
        graph=f.text("graph", SHA256),
        wrapper=f.text("wrapper", SHA256),
        inputs=f.objects("inputs", _value),
        calls=f.objects("calls", _call),
        target=f.text("target", WORD),
    )


def _call(f: Fields) -> Call:
    return Call(
        operator=f.text("operator", IDENTIFIER),
        writes=f.integers("writes"),
        results=f.objects("results", _value),
    )


def _value(f: Fields) -> Value:
    return Value(
        dtype=f.text("dtype", IDENTIFIER),
        shape=f.texts("shape", SOME, unique=False),
        strides=f.texts("strides", SOME, unique=False),
    )
