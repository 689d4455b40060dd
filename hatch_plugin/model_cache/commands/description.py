"""A manifest in words, for `model-cache inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from model_cache.store.files import human
from model_cache.wheel.manifest import CpuRecord, Manifest, TargetRecord
from model_cache.wheel.names import counted

CODE = ("bytecode", "pickle", "shared-object", "source")
"""Contents with which a file can run code on the host when an engine loads it."""


def describe(manifest: Manifest) -> Iterator[str]:
    """The lines that say what the wheel is, what it is for, and what loading it can do."""
    yield f"{manifest.name} {manifest.version}"
    yield from _what(manifest)
    yield from _entries(manifest)
    yield from _build(manifest)


def _what(manifest: Manifest) -> Iterator[str]:
    model, engine = manifest.model, manifest.engine
    revision = f" at {model.revision}" if model.revision else ""
    yield f"  model      {model.id}{revision} ({', '.join(model.architectures)})"
    yield f"  served as  {', '.join(model.served_as)}"
    libraries = ", ".join(
        f"{library} {version}"
        for library, version in (("torch", engine.torch), ("triton", engine.triton), ("CUDA", engine.cuda))
        if version
    )
    yield f"  engine     {engine.name} {engine.version}, {libraries}"
    yield f"  python     {engine.python} on {engine.platform}"
    for target in manifest.targets:
        yield f"  target     {target.name}: {_target(target)}"
    yield f"  serve      {' '.join(manifest.serve.arguments) or 'no arguments'}"
    for name, value in sorted(manifest.serve.environment.items()):
        yield f"             {name}={value}"


def _target(target: TargetRecord) -> str:
    if isinstance(target, CpuRecord):
        return f"{target.machine} CPU, {target.vec_isa} ({target.cpu_capability}; needs {', '.join(target.flags)})"
    doubt = f"; without a source: {', '.join(target.unverified)}" if target.unverified else ""
    return f"{target.device_name} (compute capability {target.compute_capability}, {target.sm_count} SMs{doubt})"


def _entries(manifest: Manifest) -> Iterator[str]:
    blobs = manifest.blobs()
    stored = sum(blobs.values())
    spared = sum(file.size for file in manifest.files()) - stored
    equal = f"; {human(spared)} more if equal files of ranks and names were not stored once" if spared else ""
    yield f"  entries    {len(manifest.entries)}, {counted(len(blobs), 'distinct file')}, {human(stored)}{equal}"
    for entry in manifest.entries:
        size = human(sum(file.size for file in entry.files))
        prefix = f" {entry.prefix}" if entry.prefix else ""
        ranks = f", ranks {', '.join(entry.ranks)}" if entry.ranks else ""
        yield f"    {entry.component}{prefix} for {entry.target} as {entry.served_as}: {size}{ranks}"
        yield f"      {entry.directory}"
    for path in sorted(manifest.hints):
        yield f"    {path}, beside the entries"
    contents = Counter(content for file in manifest.files() for content in file.contains)
    code = [f"{content} ({counted(contents[content], 'file')})" for content in CODE if contents[content]]
    yield (
        f"  can run    {', '.join(code)} when an engine loads it" if code else "  can run    no host code, only kernels"
    )


def _build(manifest: Manifest) -> Iterator[str]:
    build = manifest.build
    registers = [kernel.registers for kernel in manifest.kernels]
    spilling = sum(1 for kernel in manifest.kernels if kernel.spills)
    if registers:
        yield f"  kernels    {len(registers)}, up to {counted(max(registers), 'register')}, {spilling} with spills"
    yield f"  built      {build.mode} by {build.tool}, recipe {build.recipe_digest[:16]}"
    if build.source.commit:
        dirty = " with uncommitted changes" if build.source.dirty else ""
        yield f"  source     commit {build.source.commit}{dirty}"
    if headers := build.checkpoint:
        read = f"{counted(headers.tensors, 'tensor')} in {counted(headers.files, 'file')}, {headers.digest[:16]}"
        yield f"  checkpoint headers of {read}"
    for warning in build.warnings:
        yield f"    warning: {warning}"
    for stand_in in build.stand_ins:
        yield f"    made up: {stand_in.answer} at {stand_in.site} ({counted(stand_in.count, 'time')})"
    answers = ", ".join(f"{name}={_shown(value)}" for name, value in sorted(manifest.host_answers.items()))
    yield f"  host said  {answers or 'nothing'}"


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)
