"""Directories of wheels → wheels that may enter an index: every one verified, or none."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from installer.sources import WheelFile
from packaging.metadata import Metadata
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from model_cache.commands.results import joined
from model_cache.errors import DamagedError, ModelCacheError, NotFoundError, UsageError
from model_cache.origin import signature
from model_cache.origin.trust import Trust
from model_cache.wheel import manifest as manifests
from model_cache.wheel import small_file
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.catalogue import Key, Model, Offer, Package, Part, Target
from model_cache.wheel.manifest import GpuRecord, TargetRecord
from model_cache.wheel.names import PREFIX, printable
from model_cache.wheel.verify import read_manifest, verify

from . import notes, variants
from .notes import Note
from .variants import split_label

__all__ = ["FOLDER", "Shelf", "Wheel", "read", "url_of"]

FOLDER = "wheels"
"""Directory of an index that holds the wheels and what lies beside them."""

_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Wheel:
    """A wheel that was verified. package: how the catalogue describes it; beside: url → bytes of its small files.

    label: of a wheel variant.
    """

    path: Path
    package: Package
    beside: Mapping[str, bytes]
    label: str | None = None


@dataclass(frozen=True)
class Shelf:
    """What directories hold. left_out: names of what is no wheel, such as sdists: no host should ever build one."""

    wheels: tuple[Wheel, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    """A wheel's file before it was looked into. sha256: of its bytes; size in bytes."""

    path: Path
    project: str
    version: Version
    sha256: str
    size: int

    def part(self, ending: str, data: bytes) -> Part:
        """How the catalogue names `data`, put beside this wheel under its name and `ending`."""
        return Part(url=url_of(self.path.name + ending), sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def url_of(name: str) -> str:
    """Where in an index a file of this name lies."""
    return f"{FOLDER}/{quote(name, safe='')}"


def read(
    directories: Sequence[Path],
    trust: Trust,
    known: Mapping[str, str],
    told: Callable[[str], None] = lambda _: None,
) -> Shelf:
    """Verify every wheel in `directories`.

    trust: what is asked of the wheels' origin. known: file name → sha256 of wheels that were verified before: their
    contents are not unpacked again, unless `trust` requires signatures (which asks more of contents). told: is called
    with the name of each file that is looked at. Raises NotFoundError without a wheel, UsageError for a wrong
    index.toml, DamagedError or NotTrustedError with every wheel that must not enter.
    """
    files, said, left_out = _files(directories)
    if not files:
        raise NotFoundError(f"{', '.join(map(str, directories))}: no wheel is there")
    wheels: list[Wheel] = []
    errors: list[ModelCacheError] = []
    identities: dict[object, str] = {}
    for name, path in sorted(files.items()):
        told(name)
        try:
            wheels.append(_wheel(path, said.get(name, Note()), trust, known, identities))
        except ModelCacheError as error:
            errors.append(error)
    if failed := joined(errors):
        raise failed
    return Shelf(tuple(wheels), tuple(sorted(left_out)))


def _files(directories: Sequence[Path]) -> tuple[dict[str, Path], dict[str, Note], list[str]]:
    files: dict[str, Path] = {}
    said: dict[str, Note] = {}
    left_out: list[str] = []
    for directory in dict.fromkeys(directories):
        mode = small_file.mode(directory)
        if not stat.S_ISDIR(mode):
            problem = "is no directory" if mode else "there is no such directory"
            raise (UsageError if mode else NotFoundError)(f"{directory}: {problem}")
        here = {}
        for path in sorted(directory.iterdir()):
            if path.suffix == ".whl" and stat.S_ISREG(small_file.mode(path)):
                here[path.name] = path
            elif path.name != notes.FILE_NAME and not path.name.startswith("."):
                left_out.append(path.name)
        for name in here.keys() & files.keys():
            raise UsageError(f"{here[name]} and {files[name]}: two files have one name; take one away")
        files |= here
        said |= notes.read(directory, here)
    return files, said, left_out


def _wheel(path: Path, note: Note, trust: Trust, known: Mapping[str, str], identities: dict[object, str]) -> Wheel:
    plain, label = split_label(path.name)
    try:
        project, version, build, tags = parse_wheel_filename(plain)
    except InvalidWheelFilename as error:
        raise DamagedError(
            f"{printable(path.name)}: is not the file name of a wheel: {printable(str(error))}"
        ) from None
    other = identities.setdefault((project, version, build, tags, label), path.name)
    if other != path.name:
        raise DamagedError(f"{path.name}: is the same wheel to an index as {other}; take one away")
    try:
        with path.open("rb") as source:
            sha256 = hashlib.file_digest(source, "sha256").hexdigest()
            file = _File(path, project, version, sha256, source.tell())
    except OSError as error:
        raise ModelCacheError(f"{path}: cannot be read: {error.strerror}") from None
    unpack = known.get(path.name) != sha256 or trust.policy == "require"
    if project.startswith(PREFIX):
        return _model_cache(file, note, trust, label, unpack=unpack)
    return _other(file, note, unpack=unpack)


def _model_cache(file: _File, note: Note, trust: Trust, label: str | None, *, unpack: bool) -> Wheel:
    with WheelPayload(str(file.path)) as payload:
        verified = verify(payload, trust=trust) if unpack else read_manifest(payload, trust)
        data = payload.read(manifests.FILE_NAME, manifests.MAX_BYTES)
        signed = signature.FILE_NAME in payload.files()
        signatures = payload.read(signature.FILE_NAME, signature.MAX_BYTES) if signed else None
        metadata = payload.metadata("METADATA")
        if label is not None:
            variants.check(payload, verified.manifest, label)
    package = _package(file, note, metadata)
    if label is not None:
        return Wheel(file.path, package, {package.metadata.url: metadata}, label)
    manifest, origin, model = verified.manifest, verified.origin, verified.manifest.model
    beside = {package.metadata.url: metadata, url_of(f"{file.path.name}.manifest.json"): data}
    if signatures is not None:
        beside[url_of(f"{file.path.name}.manifest.sig")] = signatures
    offer = Offer(
        **vars(package),
        model=Model(id=model.id, revision=model.revision, architectures=model.architectures, served_as=model.served_as),
        engine=manifest.engine,
        targets=tuple(Target(name=target.name, hardware=_hardware(target)) for target in manifest.targets),
        payload_size=sum(one.size for one in manifest.files()),
        compile_seconds=note.compile_seconds,
        manifest=file.part(".manifest.json", data),
        signature=file.part(".manifest.sig", signatures) if signatures is not None else None,
        keys=tuple(
            Key(id=one.key, checked=origin.trusted and origin.key == one.key)
            for one in (signature.parse(signatures) if signatures is not None else ())
        ),
    )
    return Wheel(file.path, offer, beside)


def _hardware(target: TargetRecord) -> str:
    return target.device_name if isinstance(target, GpuRecord) else f"{target.machine} CPU with {target.vec_isa}"


def _other(file: _File, note: Note, *, unpack: bool) -> Wheel:
    """A wheel that is no model cache: what one depends on. Only its own RECORD can speak for it."""
    try:
        with zipfile.ZipFile(file.path) as archive:
            wheel = WheelFile(archive)
            for name in ("METADATA", "RECORD"):  # both are read into memory
                if archive.getinfo(f"{wheel.dist_info_dir}/{name}").file_size > _MAX_BYTES:
                    raise ValueError(f"{name} is larger than {_MAX_BYTES} bytes")
            wheel.validate_record(validate_contents=unpack)
            metadata = wheel.read_dist_info("METADATA").encode()
    except Exception as error:  # installer raises its own kinds, zipfile and the parsers theirs
        reason = printable(str(error).strip() or repr(error))
        raise DamagedError(f"{file.path.name}: does not agree with its own RECORD: {reason:.300}") from None
    package = _package(file, note, metadata)
    return Wheel(file.path, package, {package.metadata.url: metadata})


def _package(file: _File, note: Note, metadata: bytes) -> Package:
    try:
        read = Metadata.from_email(metadata, validate=True)
    except ExceptionGroup as error:
        problems = [printable(str(one)) for one in error.exceptions]
        raise DamagedError(f"{file.path.name}: its METADATA is not valid", problems) from None
    if canonicalize_name(read.name) != file.project or read.version != file.version:
        raise DamagedError(f"{file.path.name}: its METADATA is of {printable(read.name)} {read.version}")
    return Package(
        url=url_of(file.path.name),
        sha256=file.sha256,
        size=file.size,
        name=file.project,
        version=str(file.version),
        file=file.path.name,
        metadata=file.part(".metadata", metadata),
        requires_python=str(read.requires_python) if read.requires_python else None,
        uploaded=note.uploaded,
        yanked=note.yanked,
    )
