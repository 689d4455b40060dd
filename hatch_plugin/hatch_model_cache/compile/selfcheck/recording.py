"""Notes what every kernel of a compile was made from (source and configuration, PTX, ptxas and its flags), and what
Inductor was given of every region that it compiled.

The texts are written as files named by their SHA-256; the manifest refers to them (`model_cache.wheel.lineage`).
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.pretend.patches import Patches
from model_cache.wheel.lineage import Call, Lineage, Region, Value

CHECKED = "torch 2.14.0, triton 3.8.0"


@dataclass
class Record:
    """What was noted so far.

    Attributes:
        target: name of the target that is compiled for.
        directory: where texts are written, by their SHA-256; not at all if None.
        lineages: by the cubin's SHA-256.
        regions: in the order of the compile, each distinct one once.
    """

    target: str
    directory: Path | None
    lineages: dict[str, Lineage] = field(default_factory=dict)
    regions: dict[tuple[str, str], Region] = field(default_factory=dict)

    def text(self, text: str) -> str:
        """Keep a text; its SHA-256."""
        data = text.encode()
        digest = hashlib.sha256(data).hexdigest()
        if self.directory is not None:
            self.directory.mkdir(exist_ok=True)
            (self.directory / digest).write_bytes(data)
        return digest

    def lineage(self, cubin: str) -> dict[str, Any] | None:
        """What the cubin with this SHA-256 was made from, as plain values; None if it was not noted."""
        found = self.lineages.get(cubin)
        return None if found is None else asdict(found)

    def regions_as_dicts(self) -> list[dict[str, Any]]:
        """The regions as plain values."""
        return [asdict(region) for region in self.regions.values()]


@dataclass
class _Compiling:
    """The Inductor kernel that is being compiled right now, if one is."""

    source: str | None = None
    config: dict[str, int] = field(default_factory=dict)


def install(patches: Patches, record: Record) -> None:
    """Note everything that is compiled from now on."""
    compiling = _Compiling()
    _note_sources(patches, compiling)
    _note_assemblies(patches, record, compiling)
    _note_regions(patches, record)


def _note_sources(patches: Patches, compiling: _Compiling) -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    precompile = CachingAutotuner._precompile_config

    def noted(self: Any, config: Any, **kwargs: Any) -> Any:
        path = Path(self.fn.fn.__code__.co_filename)
        compiling.source = path.read_text("utf-8") if path.is_file() else None
        compiling.config = {name: value for name, value in config.kwargs.items() if isinstance(value, int)}
        try:
            return precompile(self, config, **kwargs)
        finally:
            compiling.source = None

    why = "which source and configuration a kernel is compiled from"
    patches.set(CachingAutotuner, "_precompile_config", noted, why=why, checked=CHECKED)


def _note_assemblies(patches: Patches, record: Record, compiling: _Compiling) -> None:
    import triton.backends.nvidia.compiler as nvidia_compiler

    make_cubin = nvidia_compiler.CUDABackend.make_cubin

    def noted(self: Any, ptx: str, metadata: Any, options: Any, capability: int) -> bytes:
        with _flags_of_ptxas(nvidia_compiler) as flags:
            cubin: bytes = make_cubin(self, ptx, metadata, options, capability)
        source = compiling.source
        record.lineages[hashlib.sha256(cubin).hexdigest()] = Lineage(
            source=None if source is None else record.text(source),
            config=dict(compiling.config) if source is not None else {},
            warps=options.num_warps,
            stages=options.num_stages,
            ptx=record.text(ptx),
            ptxas=nvidia_compiler.get_ptxas(self.target.arch).version,
            flags=tuple(flags),
        )
        return cubin

    why = "what a cubin is assembled from, and how"
    patches.set(nvidia_compiler.CUDABackend, "make_cubin", noted, why=why, checked=CHECKED)


@contextmanager
def _flags_of_ptxas(module: Any) -> Iterator[list[str]]:
    """The flags that Triton gives to ptxas inside the block: between the program and the PTX file."""
    flags: list[str] = []

    class Noting:
        """The subprocess module; `run` notes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(subprocess, name)

        @staticmethod
        def run(command: list[str], **kwargs: Any) -> Any:
            flags[:] = command[1:-3]
            return subprocess.run(command, **kwargs)

    before = module.subprocess
    module.subprocess = Noting()
    try:
        yield flags
    finally:
        module.subprocess = before


def _note_regions(patches: Patches, record: Record) -> None:
    from torch._inductor.graph import GraphLowering

    to_module = GraphLowering._compile_to_module_lines

    def noted(self: Any, wrapper_code: Any) -> Any:
        module = to_module(self, wrapper_code)
        graph = record.text(self.orig_gm.print_readable(print_output=False))
        wrapper = record.text(wrapper_code.value)
        nodes = list(self.orig_gm.graph.nodes)
        inputs = tuple(_described(node.meta.get("val")) for node in nodes if node.op == "placeholder")
        calls = tuple(_call(node) for node in nodes if _is_library_call(node.target))
        record.regions.setdefault((graph, wrapper), Region(graph, wrapper, inputs, calls, record.target))
        return module

    why = "what Inductor is given, and the wrapper that it writes"
    patches.set(GraphLowering, "_compile_to_module_lines", noted, why=why, checked=CHECKED)


OWN_NAMESPACES = frozenset({"_inductor_test", "aten", "inductor", "inductor_prims", "prims", "rngprims"})
"""Of operators that torch itself brings and that run on a CPU."""


def _is_library_call(target: Any) -> bool:
    import torch

    return isinstance(target, torch._ops.OpOverload) and target.namespace not in OWN_NAMESPACES


def _call(node: Any) -> Call:
    """A call of an operator that is not torch's own: its name, which arguments it writes to, and what it returns."""
    schema = node.target._schema
    writes = tuple(i for i, p in enumerate(schema.arguments) if p.alias_info is not None and p.alias_info.is_write)
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    results = values[: len(schema.returns)]  # what stood for the arguments that it writes to may follow
    return Call(str(node.target), writes, tuple(map(_described, results)))


def _described(value: Any) -> Value:
    """A value by its dtype ("int" for a size), shape and strides; sizes that vary by their symbol's name."""
    import torch

    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return Value(dtype, tuple(map(str, value.shape)), tuple(map(str, value.stride())))
    if isinstance(value, (int, torch.SymInt)):
        return Value("int", (str(value),), ())
    return Value("object", (), ())
