"""Wheel variants, as two drafts describe them (PEP 825 and 850): `model-cache-<model>`, of which an installer chooses.

A variant holds the payload of a finished wheel under a name without hardware, and a label for its GPU architecture.
Only uv has an implementation (0.13, behind `--preview-features wheel-variants`); others do not see such files.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hatch_model_cache.packing import sbom
from model_cache.errors import DamagedError, ModelCacheError, UsageError
from model_cache.origin import signature
from model_cache.origin.keyring import Keyring
from model_cache.origin.trust import Trust
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.manifest import FILE_NAME, GpuRecord, Manifest
from model_cache.wheel.names import PREFIX, data_package, normalize
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import verify

__all__ = ["METADATA", "Variant", "check", "document", "index_name", "make", "plan", "split_label"]

METADATA = "variant.json"
"""Name in dist-info of what a variant is for."""

_SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
_PROVIDER = {
    "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
    "requires": ["nvidia-variant-provider>=0.0.1"],
}
"""Who says what GPU a host has; uv 0.13.9 has its own version of this one, and runs no other."""

_LABEL = re.compile(r"sm([0-9]{2,3})")


@dataclass(frozen=True)
class Variant:
    """A variant that can be made. source: the wheel whose payload it has; manifest: its own, under its own name."""

    source: Path
    manifest: Manifest
    label: str
    file: str


def split_label(file: str) -> tuple[str, str | None]:
    """The name of the wheel that `file` is a variant of, and the label; (`file`, None) for one that is no variant."""
    head, _, label = file.removesuffix(".whl").rpartition("-")
    return (f"{head}.whl", label) if head.count("-") >= 4 and _LABEL.fullmatch(label) else (file, None)


def document(labels: Iterable[str]) -> bytes:
    """What labels mean, as a variant itself (one label) and an index (all of one version) have it."""
    architectures = {label: label.removeprefix("sm") for label in sorted(labels)}
    whole = {
        "$schema": _SCHEMA,
        "default-priorities": {"namespace": ["nvidia"]},
        "providers": {"nvidia": _PROVIDER},
        "variants": {label: {"nvidia": {"sm_arch": [f"{sm}_real"]}} for label, sm in architectures.items()},
    }
    return json.dumps(whole, indent=1).encode() + b"\n"


def index_name(name: str, version: str) -> str:
    """The name of the file in which an index says what the labels of one version mean."""
    return f"{data_package(name)}-{version}-variants.json"


def check(payload: Payload, manifest: Manifest, label: str) -> None:
    """Raise DamagedError when a verified variant says that it is for other GPUs than its manifest."""
    if label != _label(manifest) or payload.metadata(METADATA) != document([label]):
        raise DamagedError(f"{payload.label}: its label or {METADATA} does not agree with its manifest")


def plan(wheels: Iterable[Path]) -> list[Variant]:
    """The variants of `wheels`, every one verified. Raises UsageError for wheels that can have none."""
    found: dict[str, Variant] = {}
    for wheel in wheels:
        with WheelPayload(str(wheel)) as payload:
            manifest = verify(payload, trust=Trust("off", Keyring())).manifest
        one = _variant(wheel, manifest)
        other = found.setdefault(one.file, one)
        if other.source != wheel:
            raise UsageError(
                f"{wheel.name} and {other.source.name} would both be {one.file}, and an installer sees the "
                "architecture only: build one wheel for both targets"
            )
    return list(found.values())


def _variant(wheel: Path, manifest: Manifest) -> Variant:
    label = _label(manifest)
    if label is None:
        raise UsageError(f"{wheel.name}: a variant is for GPUs of one architecture; this wheel is not")
    endings = [f"-{normalize(word)}" for word in (label, *(target.name for target in manifest.targets))]
    name = normalize(manifest.name)
    ending = next((ending for ending in endings if name.endswith(ending)), "")
    if not ending or len(name) <= len(PREFIX + ending):
        raise UsageError(
            f"{wheel.name}: its name does not end in its target or {label}, so what is before is not known"
        )
    own = dataclasses.replace(manifest, name=name.removesuffix(ending))
    tags = wheel.name.removesuffix(".whl").split("-")[1:]
    return Variant(wheel, own, label, "-".join([data_package(own.name), *tags, label]) + ".whl")


def _label(manifest: Manifest) -> str | None:
    """`sm90` when every target is a GPU of one architecture."""
    targets = manifest.targets
    found = {target.compute_capability if isinstance(target, GpuRecord) else None for target in targets}
    [capability] = found if len(found) == 1 else [None]
    return None if capability is None else "sm" + capability.replace(".", "")


def make(variant: Variant, folder: Path) -> Path:
    """Write `variant` into `folder`, in one step; the same wheel gives the same bytes. It is not signed.

    Raises DamagedError when what was written cannot be verified, ModelCacheError when it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".model-cache-variant-", dir=folder) as scratch:
            new = Path(scratch) / variant.file
            with zipfile.ZipFile(variant.source) as old, zipfile.ZipFile(new, "w") as archive:
                _write(old, archive, variant)
            with WheelPayload(str(new)) as payload:
                check(payload, verify(payload, trust=Trust("off", Keyring())).manifest, variant.label)
            new.chmod(0o644)
            return new.rename(folder / variant.file)
    except OSError as error:
        raise ModelCacheError(f"{folder}: cannot be written to: {error.strerror or error}") from None


def _write(old: zipfile.ZipFile, new: zipfile.ZipFile, variant: Variant) -> None:
    lines = []

    def write(like: zipfile.ZipInfo, name: str, data: bytes) -> None:
        member = zipfile.ZipInfo(name, like.date_time)
        member.compress_type, member.external_attr = like.compress_type, like.external_attr
        member.create_system = like.create_system
        new.writestr(member, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")

    package = data_package(variant.manifest.name)
    folder = f"{package}-{variant.manifest.version}.dist-info"
    for info in old.infolist():
        top, _, path = info.filename.partition("/")
        if not top.endswith(".dist-info"):
            if path != signature.FILE_NAME:  # it is of the other name
                write(info, f"{package}/{path}", _data(old.read(info), path, variant))
        elif path != "RECORD":
            write(info, f"{folder}/{path}", _metadata(old.read(info), path, variant))
        else:
            record = info
    write(record, f"{folder}/{METADATA}", document([variant.label]))
    write(record, f"{folder}/RECORD", "".join([*lines, f"{folder}/RECORD,,\n"]).encode())


def _data(data: bytes, path: str, variant: Variant) -> bytes:
    return variant.manifest.to_json_bytes() if path == FILE_NAME else data


def _metadata(data: bytes, path: str, variant: Variant) -> bytes:
    """A file of dist-info; what says the wheel's name says the variant's."""
    name = variant.manifest.name
    if path == "METADATA":
        return re.sub(rb"^Name: .*$", f"Name: {name}".encode(), data, count=1, flags=re.MULTILINE)
    if path == "entry_points.txt":
        entry = re.compile(rf"^{re.escape(PREFIX)}\S+ = {re.escape(data_package(PREFIX))}\S+$", re.MULTILINE)
        return entry.sub(f"{name} = {data_package(name)}", data.decode(), count=1).encode()
    return sbom.to_bytes(variant.manifest) if path == f"sboms/{sbom.FILE_NAME}" else data
