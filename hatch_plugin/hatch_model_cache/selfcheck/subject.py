"""What is checked: a wheel or an artifact directory, its kernels' texts, and the cubins that it really holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hatch_model_cache import cubin
from hatch_model_cache.packing.artifacts import EVIDENCE, Artifacts
from hatch_model_cache.selfcheck import evidence
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import blob_path, verify


@dataclass(frozen=True)
class Subject:
    """label: how messages name it; texts: SHA-256 → what kernels were made from; cubins: SHA-256 of those inside."""

    label: str
    manifest: Manifest
    texts: Mapping[str, bytes]
    cubins: frozenset[str]


def of_payload(payload: Payload) -> Subject:
    """A wheel, verified first. Raises DamagedError or NotTrustedError as `verify` does."""
    manifest = verify(payload).manifest
    texts = evidence.read(payload, manifest.texts())
    files = {file.sha256: file for file in manifest.files() if "cubin" in file.contains}
    contents = (payload.read(blob_path(file.sha256), file.size) for file in files.values())
    return Subject(payload.label, manifest, texts, _cubins(contents))


def of_artifacts(artifacts: Artifacts) -> Subject:
    """An artifact directory."""
    manifest = artifacts.contents
    texts = {digest: artifacts.path(source).read_bytes() for source, digest in artifacts.texts().items()}
    sources = {source for _, file, source in artifacts.files() if "cubin" in file.contains}
    contents = (artifacts.path(source).read_bytes() for source in sorted(sources))
    return Subject(str(artifacts.directory), manifest, texts, _cubins(contents))


def evidence_of(artifacts: Artifacts) -> bytes | None:
    """The file that goes into a wheel of these artifacts, None if they keep nothing; raises as `to_bytes` does."""
    if not (artifacts.directory / EVIDENCE).is_dir():
        return None
    return evidence.to_bytes({digest: artifacts.path(s).read_bytes() for s, digest in artifacts.texts().items()})


def _cubins(contents: Iterable[bytes]) -> frozenset[str]:
    return frozenset(hashlib.sha256(one).hexdigest() for data in contents for one in cubin.embedded(data))
