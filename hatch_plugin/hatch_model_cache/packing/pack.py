"""Artifact directory -> manifest, blobs and tag of a wheel. Refuses whatever must not be shipped."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hatch_model_cache.packing.artifacts import EVIDENCE, Artifacts
from hatch_model_cache.packing.completeness import missing_parts
from hatch_model_cache.packing.leaks import Watch
from hatch_model_cache.packing.scan import file_problems
from hatch_model_cache.recipe.recipe import Recipe
from model_cache.errors import DamagedError
from model_cache.wheel.allowed_globals import look, rules
from model_cache.wheel.manifest import FILE_NAME, Entry, GpuRecord, Manifest, parse

__all__ = ["BLOBS", "Packed", "blob_path", "pack", "tag"]

BLOBS = "blobs"

_BOUND_TO_PYTHON = frozenset(("pickle", "bytecode"))
_CAPABILITY_SUFFIX = re.compile(r"[af]$")


@dataclass(frozen=True)
class Packed:
    """The content of a wheel's data package."""

    manifest: Manifest
    manifest_bytes: bytes
    blobs: Mapping[str, Path]
    """sha256 -> where its bytes are now."""
    tag: str
    """`cp311-none-any`: interpreter, ABI, platform."""

    @property
    def pure(self) -> bool:
        """Whether the wheel is for every platform."""
        return self.tag.endswith("-any")

    def members(self) -> dict[str, Path]:
        """Path in the data package -> source, of everything but the manifest."""
        return {blob_path(digest): source for digest, source in self.blobs.items()}


def blob_path(sha256: str) -> str:
    """Where the data package keeps the content with this digest."""
    return f"{BLOBS}/{sha256[:2]}/{sha256}"


def pack(artifacts: Artifacts, recipe: Recipe, *, name: str, version: str, watch: Watch | None = None) -> Packed:
    """Check `artifacts` as a whole and describe the wheel they give. Copies nothing.

    name, version: of the distribution, as its metadata spells them.
    watch: byte strings that may not be in any file; those of this host by default.
    Raises DamagedError with every problem found: content that is not what the description says, files that
    nobody listed, links, leftovers, parts that are missing, secrets, another recipe.
    """
    if artifacts.recipe_digest != recipe.digest():
        raise DamagedError(
            f"{artifacts.directory}: the artifacts were compiled from another recipe "
            f"(theirs {artifacts.recipe_digest}, this one {recipe.digest()}). "
            "Compile again with `model-cache compile`, or undo the change to the recipe or its config files."
        )
    watch = Watch.of_this_host() if watch is None else watch
    manifest = _ordered(dataclasses.replace(artifacts.contents, name=name, version=version))
    data = manifest.to_json_bytes()
    problems = _other_recipe(manifest, recipe)
    problems += missing_parts(manifest)
    if recipe.keeps_evidence and not artifacts.texts():
        problems.append(f"{EVIDENCE}/: is missing, and the recipe keeps what kernels were made from")
    problems += _wrong_architectures(manifest)
    damaged = file_problems(artifacts, watch)
    problems += [*damaged, *_pickle_problems(artifacts, damaged)]
    problems += [f"{FILE_NAME}: would hold {leak}" for leak in watch.leaks(data, text=True)]
    if problems:
        raise DamagedError(f"{artifacts.directory}: these artifacts cannot be packed", problems)
    parse(data)  # the reader of the other side has the last word
    blobs = {file.sha256: artifacts.path(source) for _, file, source in reversed(list(artifacts.files()))}
    return Packed(manifest, data, dict(sorted(blobs.items())), tag(manifest))


def tag(manifest: Manifest) -> str:
    """The wheel's compatibility tag, derived from what its files contain.

    Pickles and bytecode belong to one minor version of Python, shared objects to one platform; cubins, PTX
    and JSON to neither.
    """
    contained = {kind for file in manifest.files() for kind in file.contains}
    python, platform = "py3", "any"
    if contained & _BOUND_TO_PYTHON:
        major, minor = manifest.engine.python.split(".")[:2]
        python = f"cp{major}{minor}"
    if "shared-object" in contained:
        platform = re.sub(r"[-.]", "_", manifest.engine.platform)
    return f"{python}-none-{platform}"


def _ordered(manifest: Manifest) -> Manifest:
    """The same manifest with its lists sorted: a compile may finish its parts in any order."""
    return dataclasses.replace(
        manifest,
        entries=tuple(sorted(map(_ordered_entry, manifest.entries), key=lambda entry: entry.directory)),
        kernels=tuple(sorted(manifest.kernels, key=lambda kernel: (kernel.target, kernel.name, kernel.sha256))),
    )


def _ordered_entry(entry: Entry) -> Entry:
    files = (dataclasses.replace(file, contains=tuple(sorted(file.contains))) for file in entry.files)
    return dataclasses.replace(
        entry,
        ranks=tuple(sorted(entry.ranks)),
        files=tuple(sorted(files, key=lambda file: file.path)),
    )


def _other_recipe(manifest: Manifest, recipe: Recipe) -> list[str]:
    """Differences that the digest cannot show: what was compiled against what was ordered."""
    engine = manifest.engine
    pairs = (
        ("engine", f"{engine.name}=={engine.version}", recipe.engine),
        ("model.id", manifest.model.id, recipe.model),
        ("model.served_as", sorted(manifest.model.served_as), sorted(recipe.served_as)),
        ("targets", sorted(target.name for target in manifest.targets), sorted(recipe.targets)),
        ("serve.arguments", list(manifest.serve.arguments), list(recipe.serve_args)),
        ("serve.environment", dict(manifest.serve.environment), dict(recipe.environment)),
    )
    return [f"{field}: is {got!r}, the recipe says {said!r}" for field, got, said in pairs if got != said]


def _pickle_problems(artifacts: Artifacts, damaged: list[str]) -> list[str]:
    """Names outside the engine's list: this is what a poisoned cache of the builder, or another version, looks like.

    damaged: what is wrong with files already; nothing follows from the pickles in them.
    """
    allowed = rules(artifacts.contents.engine.name)
    problems = []
    seen = set()
    for entry, file, source in artifacts.files():
        path = artifacts.path(source)
        if source in seen or any(problem.startswith((f"{source}:", f"{source} (")) for problem in damaged):
            continue
        seen.add(source)
        data = path.read_bytes()
        if allowed.applies(entry.component, file, data[:1]):
            problems += [f"{source} ({file.path}): {problem}" for problem in look(allowed, entry.component, data)]
    return problems


def _wrong_architectures(manifest: Manifest) -> list[str]:
    problems = []
    for kernel in manifest.kernels:
        target = manifest.target(kernel.target)
        if not isinstance(target, GpuRecord):
            continue  # the manifest's reader has said what is wrong then
        expected = "sm_" + target.compute_capability.replace(".", "")
        if _CAPABILITY_SUFFIX.sub("", kernel.arch) != expected:
            problems.append(f"kernel {kernel.name} is for {kernel.arch}, its target {kernel.target} is {expected}")
    return problems
