"""The manifest: the one description of a wheel, from which the serving side decides everything.

The shape is published as `manifest.schema.json`; `parse` is stricter still: it also checks references.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass

from model_cache.errors import DamagedError
from model_cache.wheel.consistency import inconsistencies
from model_cache.wheel.lineage import Lineage, Region, read_lineage, read_region
from model_cache.wheel.names import unsafe_path
from model_cache.wheel.patterns import IDENTIFIER, SHA256, SOME, VERSION, WORD
from model_cache.wheel.strict_json import Fields, loads
from model_cache.wheel.target_record import CpuRecord as CpuRecord
from model_cache.wheel.target_record import GpuRecord as GpuRecord
from model_cache.wheel.target_record import TargetRecord as TargetRecord
from model_cache.wheel.target_record import target_record

SCHEMA_VERSION = 1
MAX_BYTES = 16 * 1024 * 1024
"""A larger manifest is refused before it is read."""

FILE_NAME = "manifest.json"
CONTAINS = frozenset({"bytecode", "cubin", "json", "other", "pickle", "ptx", "shared-object", "source"})
MODES = frozenset({"0644", "0755"})
BUILD_MODES = frozenset({"capture", "cross", "native"})

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_KEY = re.compile(r"[0-9a-f]{8,128}")
_NAME = re.compile(r"model-cache-[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_RANK = re.compile(r"[0-9]{1,6}_[0-9]{1,6}")


Scalar = bool | int | str | None


@dataclass(frozen=True)
class Model:
    """What was compiled. config_sha256: of config.json's bytes. served_as: every name that has an entry."""

    id: str
    revision: str | None
    config_sha256: str
    architectures: tuple[str, ...]
    served_as: tuple[str, ...]


@dataclass(frozen=True)
class Engine:
    """The exact versions of the build; python includes the patch version, torch its local part.

    triton, cuda: None for a build of torch without them, which only CPU targets can do with.
    """

    name: str
    version: str
    torch: str
    triton: str | None
    cuda: str | None
    python: str
    platform: str


@dataclass(frozen=True)
class Serve:
    """How the engine has to be started: arguments after `vllm serve MODEL`, and environment variables."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class StandIn:
    """A value that the build had to make up (site: where in the engine; answer: which; count: how often)."""

    site: str
    answer: str
    count: int


@dataclass(frozen=True)
class Source:
    """Where the recipe came from. commit: of its project, None without one; dirty: whether it differed from that."""

    commit: str | None
    dirty: bool


@dataclass(frozen=True)
class Checkpoint:
    """Headers of the weights, which the model was loaded from. values: tensors so small that their values were read."""

    digest: str
    files: int
    tensors: int
    values: int


@dataclass(frozen=True)
class Build:
    """How it was built; no time, no host, no path. checkpoint: None where nothing was looked at."""

    mode: str
    tool: str
    recipe_digest: str
    source: Source
    checkpoint: Checkpoint | None
    warnings: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()


@dataclass(frozen=True)
class File:
    """One file of an entry. path: relative to the entry's directory; size in bytes; mode: octal digits."""

    path: str
    sha256: str
    size: int
    mode: str
    kind: str
    contains: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One directory below the engine's cache root: the unit that deploy renames into place."""

    directory: str
    component: str
    key: str
    prefix: str
    target: str
    served_as: str
    ranks: tuple[str, ...]
    factors: str
    factor_overrides: Mapping[str, str]
    files: tuple[File, ...]


@dataclass(frozen=True)
class Kernel:
    """One cubin inside the artifacts.

    registers: per thread; shared: bytes per block, None where the cubin alone is known; spills: 32-bit words per
    thread; configs: how many cubins the wheel holds of this kernel for this target. Which of several is used is
    measured on the serving host. lineage: what it was made from, None if that was not noted.
    """

    name: str
    sha256: str
    arch: str
    registers: int
    shared: int | None
    spills: int
    configs: int
    target: str
    lineage: Lineage | None


@dataclass(frozen=True)
class Manifest:
    """See the module. Build one, then `to_json_bytes()`; `parse` reads it back and checks it."""

    name: str
    version: str
    model: Model
    engine: Engine
    targets: tuple[TargetRecord, ...]
    serve: Serve
    build: Build
    host_answers: Mapping[str, Scalar]
    unkeyed: Mapping[str, Scalar]
    """What decided the code and is in no cache key of the engine: a host that differs would load the wrong thing."""
    factors: Mapping[str, Mapping[str, str]]
    entries: tuple[Entry, ...]
    kernels: tuple[Kernel, ...]
    regions: tuple[Region, ...]
    """The graphs that Inductor compiled, where that was noted."""
    hints: Mapping[str, str]
    """Small JSON files that the engine judges by what they hold, and does without: path below the root → text."""
    schema_version: int = SCHEMA_VERSION

    def files(self) -> Iterator[File]:
        """Every file of every entry; the same content may come more than once."""
        for entry in self.entries:
            yield from entry.files

    def blobs(self) -> dict[str, int]:
        """sha256 → size in bytes of each distinct content."""
        return {file.sha256: file.size for file in self.files()}

    def texts(self) -> set[str]:
        """SHA-256 of everything its kernels were made from: sources, PTX, graphs and wrappers. No file of an entry."""
        lineages = [kernel.lineage for kernel in self.kernels if kernel.lineage]
        found = {digest for lineage in lineages for digest in (lineage.source, lineage.ptx) if digest}
        return found | {digest for region in self.regions for digest in (region.graph, region.wrapper)}

    def target(self, name: str) -> TargetRecord | None:
        """The record of target `name`, None if the wheel was not built for it."""
        return next((target for target in self.targets if target.name == name), None)

    def as_dict(self) -> dict[str, object]:
        """Plain dicts, lists and scalars in the published shape."""
        plain = _plain(self)
        assert isinstance(plain, dict)
        return plain

    def to_json_bytes(self) -> bytes:
        """The manifest's bytes: the same value always gives the same bytes."""
        text = json.dumps(self.as_dict(), sort_keys=True, indent=1, ensure_ascii=False)
        return text.encode() + b"\n"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def parse(data: bytes, what: str = FILE_NAME) -> Manifest:
    """Read and check a manifest's bytes. what: names the source in errors.

    Raises DamagedError with every problem found; an unknown schema version is told alone, since the other
    fields then mean something else.
    """
    return from_dict(loads(data, what, MAX_BYTES), what)


def from_dict(value: object, what: str = FILE_NAME) -> Manifest:
    """As `parse`, from the JSON value itself (also for those who have just made one)."""
    if isinstance(value, dict) and value.get("schema_version") != SCHEMA_VERSION:
        version = value.get("schema_version")
        raise DamagedError(
            f"{what}: schema_version is {version!r:.40}, this hatch-model-cache reads {SCHEMA_VERSION}; "
            "install the version of hatch-model-cache that made the wheel, or a newer one"
        )
    problems: list[str] = []
    document = Fields(value, "", problems)
    manifest = _manifest(document)
    document.done()
    if not problems:
        problems += inconsistencies(manifest)
    if problems:
        raise DamagedError(f"{what}: is not a valid manifest", problems)
    return manifest


def _manifest(f: Fields) -> Manifest:
    factors = f.mapping("factors")
    table = Fields(factors, f.where("factors"), f.problems)
    return Manifest(
        schema_version=f.integer("schema_version"),
        name=f.text("name", _NAME),
        version=f.text("version", VERSION),
        model=f.one("model", _model),
        engine=f.one("engine", read_engine),
        targets=f.objects("targets", target_record, least=1),
        serve=f.one("serve", _serve),
        build=f.one("build", _build),
        host_answers=f.scalar_mapping("host_answers"),
        unkeyed=f.scalar_mapping("unkeyed"),
        factors={key: table.text_mapping(key) for key in factors},
        entries=f.objects("entries", _entry, least=1),
        kernels=f.objects("kernels", _kernel),
        regions=f.objects("regions", read_region),
        hints=f.text_mapping("hints"),
    )


def _model(f: Fields) -> Model:
    return Model(
        id=f.text("id", SOME),
        revision=f.optional_text("revision", SOME),
        config_sha256=f.text("config_sha256", SHA256),
        architectures=f.texts("architectures", IDENTIFIER),
        served_as=f.texts("served_as", SOME, least=1),
    )


def read_engine(f: Fields) -> Engine:
    """Read the engine's versions; a catalogue has them too."""
    return Engine(
        name=f.text("name", WORD),
        version=f.text("version", VERSION),
        torch=f.text("torch", VERSION),
        triton=f.optional_text("triton", VERSION),
        cuda=f.optional_text("cuda", VERSION),
        python=f.text("python", VERSION),
        platform=f.text("platform", IDENTIFIER),
    )


def _serve(f: Fields) -> Serve:
    return Serve(f.texts("arguments", unique=False), f.text_mapping("environment"))


def _build(f: Fields) -> Build:
    return Build(
        mode=f.text("mode", choices=BUILD_MODES),
        tool=f.text("tool", SOME),
        recipe_digest=f.text("recipe_digest", SHA256),
        source=f.one("source", _source),
        checkpoint=f.optional_one("checkpoint", _checkpoint),
        warnings=f.texts("warnings", unique=False),
        stand_ins=f.objects("stand_ins", _stand_in),
    )


def _source(f: Fields) -> Source:
    return Source(f.optional_text("commit", _COMMIT), f.boolean("dirty"))


def _checkpoint(f: Fields) -> Checkpoint:
    return Checkpoint(f.text("digest", SHA256), f.integer("files", 1), f.integer("tensors"), f.integer("values"))


def _stand_in(f: Fields) -> StandIn:
    return StandIn(f.text("site"), f.text("answer"), f.integer("count"))


def _entry(f: Fields) -> Entry:
    return Entry(
        directory=_path(f, "directory"),
        component=f.text("component", WORD),
        key=f.text("key", _KEY),
        prefix=f.text("prefix"),
        target=f.text("target", WORD),
        served_as=f.text("served_as", SOME),
        ranks=f.texts("ranks", _RANK),
        factors=f.text("factors", SOME),
        factor_overrides=f.text_mapping("factor_overrides"),
        files=f.objects("files", _file, least=1),
    )


def _file(f: Fields) -> File:
    return File(
        path=_path(f, "path"),
        sha256=f.text("sha256", SHA256),
        size=f.integer("size", 1),
        mode=f.text("mode", choices=MODES),
        kind=f.text("kind", WORD),
        contains=f.texts("contains", choices=CONTAINS),
    )


def _kernel(f: Fields) -> Kernel:
    return Kernel(
        name=f.text("name", SOME),
        sha256=f.text("sha256", SHA256),
        arch=f.text("arch", WORD),
        registers=f.integer("registers"),
        shared=f.optional_integer("shared"),
        spills=f.integer("spills"),
        configs=f.integer("configs", 1),
        target=f.text("target", WORD),
        lineage=f.optional_one("lineage", read_lineage),
    )


def _path(f: Fields, key: str) -> str:
    path = f.text(key)
    reason = unsafe_path(path) if key in f.value and isinstance(f.value[key], str) else None
    if reason:
        f.problem(key, f"{path!r:.80} {reason}")
    return path
