"""The catalogue of a static index: what its wheels are for, so that one can be judged before it is downloaded.

`model-cache index build` writes it as `catalogue.json`; the shape is published as `catalogue.schema.json`. Every value
was taken from wheels that had been verified, but whoever reads it has no proof of that: the wheel decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import unquote

from model_cache.errors import DamagedError
from model_cache.origin.signature import MAX_SIGNATURES
from model_cache.wheel.manifest import Engine, read_engine
from model_cache.wheel.names import normalize, unsafe_path
from model_cache.wheel.patterns import IDENTIFIER, SHA256, SOME, VERSION, WORD
from model_cache.wheel.strict_json import Fields, loads

FILE_NAME = "catalogue.json"
SCHEMA_VERSION = 1
MAX_BYTES = 64 * 1024 * 1024
"""A larger catalogue is refused before it is read."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
_LABELS_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*-variants\.json")
_URL = re.compile(r"([A-Za-z0-9._~-]|%[0-9A-F]{2})+(/([A-Za-z0-9._~-]|%[0-9A-F]{2})+)*")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_LINE = re.compile(r"[^\x00-\x1f\x7f]*")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file beside a wheel. url: relative to the catalogue, percent-encoded; size in bytes."""

    url: str
    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Package(Part):
    """A wheel as every index lists it.

    metadata: its METADATA as a file of its own. requires_python: of METADATA. uploaded: UTC (`2027-01-31T00:00:00Z`).
    yanked: why installers may not choose it, perhaps in no words (""); None when they may.
    """

    name: str
    version: str
    file: str
    metadata: Part
    requires_python: str | None = None
    uploaded: str | None = None
    yanked: str | None = None


@dataclass(frozen=True, kw_only=True)
class Labels(Part):
    """The file of an index that says what the labels of one version's wheel variants mean (PEP 825, a draft)."""

    name: str
    version: str
    file: str


@dataclass(frozen=True, kw_only=True)
class Model:
    """As in the manifest: the model's id, its commit, and every name that the wheel serves it under."""

    id: str
    revision: str | None
    architectures: tuple[str, ...]
    served_as: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Target:
    """name: as recipes name it; hardware: what a driver or system calls it."""

    name: str
    hardware: str


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key that the wheel's signature file names. checked: the maker of the index trusted it, and it was right."""

    id: str
    checked: bool


@dataclass(frozen=True, kw_only=True)
class Offer(Package):
    """A model cache wheel.

    payload_size: bytes that a deploy writes. compile_seconds: what the publisher says a cold compile takes, None when
    nobody has said it. manifest, signature: the wheel's own, as files; signature is None without one.
    """

    model: Model
    engine: Engine
    targets: tuple[Target, ...]
    payload_size: int
    compile_seconds: int | None = None
    manifest: Part
    signature: Part | None = None
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """wheels: the model caches; others: what else the index has, so that a host needs no second one.

    Wheel variants are among the others: each has the payload of one of the wheels. labels: what theirs mean.
    """

    wheels: tuple[Offer, ...]
    others: tuple[Package, ...] = ()
    labels: tuple[Labels, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def packages(self) -> Iterator[Package]:
        """Every wheel of the index."""
        yield from self.wheels
        yield from self.others

    def parts(self) -> Iterator[Part]:
        """Every file that the catalogue names, with its place, digest and size."""
        for package in self.packages():
            yield package
            yield package.metadata
        for offer in self.wheels:
            yield offer.manifest
            if offer.signature:
                yield offer.signature
        yield from self.labels

    def to_json_bytes(self) -> bytes:
        """The file's bytes: the same value always gives the same bytes."""
        return json.dumps(asdict(self), sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def parse(data: bytes, what: str = FILE_NAME) -> Catalogue:
    """Read and check a catalogue's bytes. what: names the source in errors. Raises DamagedError with every problem."""
    value = loads(data, what, MAX_BYTES)
    if isinstance(value, dict) and value.get("schema_version") != SCHEMA_VERSION:
        raise DamagedError(
            f"{what}: schema_version is {value.get('schema_version')!r:.40}, this hatch-model-cache reads "
            f"{SCHEMA_VERSION}; build the index with this version, or install a newer one"
        )
    problems: list[str] = []
    document = Fields(value, "", problems)
    catalogue = Catalogue(
        schema_version=document.integer("schema_version"),
        wheels=document.objects("wheels", _offer),
        others=document.objects("others", _other),
        labels=document.objects("labels", _labels),
    )
    document.done()
    urls = [part.url for part in catalogue.parts()]
    if len(set(urls)) != len(urls):
        problems.append("two files have one url")
    if problems:
        raise DamagedError(f"{what}: is not a valid catalogue", problems)
    return catalogue


def _part(f: Fields) -> Part:
    return Part(url=_url(f), sha256=f.text("sha256", SHA256), size=f.integer("size"))


def _url(f: Fields) -> str:
    """A place below the catalogue's own: a catalogue may send nobody elsewhere."""
    url = f.text("url", _URL)
    if url and (reason := unsafe_path(unquote(url))):
        f.problem("url", f"{url!r:.80} {reason}")
    return url


def _other(f: Fields) -> Package:
    return Package(
        url=_url(f),
        sha256=f.text("sha256", SHA256),
        size=f.integer("size"),
        name=f.text("name", _NAME),
        version=f.text("version", VERSION),
        file=_file(f),
        metadata=f.one("metadata", _part),
        requires_python=f.optional_text("requires_python", SOME),
        uploaded=f.optional_text("uploaded", _TIME),
        yanked=f.optional_text("yanked", _LINE),
    )


def _labels(f: Fields) -> Labels:
    return Labels(
        url=_url(f),
        sha256=f.text("sha256", SHA256),
        size=f.integer("size"),
        name=f.text("name", _NAME),
        version=f.text("version", VERSION),
        file=_file(f, _LABELS_FILE),
    )


def _file(f: Fields, pattern: re.Pattern[str] = _FILE) -> str:
    file = f.text("file", pattern)
    if file and normalize(file.partition("-")[0]) != normalize(str(f.value.get("name"))):
        f.problem("file", f"{file!r:.80} is not of the distribution that `name` says")
    return file


def _offer(f: Fields) -> Offer:
    keys = f.objects("keys", _key)
    if len(keys) > MAX_SIGNATURES:
        f.problem("keys", f"holds more than {MAX_SIGNATURES} items")
    return Offer(
        **vars(_other(f)),
        model=f.one("model", _model),
        engine=f.one("engine", read_engine),
        targets=f.objects("targets", _target, least=1),
        payload_size=f.integer("payload_size", 1),
        compile_seconds=f.optional_integer("compile_seconds"),
        manifest=f.one("manifest", _part),
        signature=f.optional_one("signature", _part),
        keys=keys,
    )


def _key(f: Fields) -> Key:
    return Key(id=f.text("id", SHA256), checked=f.boolean("checked"))


def _model(f: Fields) -> Model:
    return Model(
        id=f.text("id", SOME),
        revision=f.optional_text("revision", SOME),
        architectures=f.texts("architectures", IDENTIFIER),
        served_as=f.texts("served_as", SOME, least=1),
    )


def _target(f: Fields) -> Target:
    return Target(name=f.text("name", WORD), hardware=f.text("hardware", SOME))
