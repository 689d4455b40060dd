"""What is checked: a wheel or an artifact directory, its kernels' texts, and the cubins that it really holds."""

from __future__ import annotations

import bisect
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hatch_model_cache import cubin
from hatch_model_cache.packing.artifacts import EVIDENCE, Artifacts
from hatch_model_cache.selfcheck import evidence
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import blob_path, verify

_HOLDING_CUBINS = frozenset({"cubin", "pickle"})
"""What files hold that may hold cubins: those of engine `torch` are pickles and nothing else to its hosts."""


@dataclass(frozen=True)
class Subject:
    """label: how messages name it; texts: SHA-256 → what kernels were made from; cubins: SHA-256 of each one inside →
    name and warps of the kernels in whose places it lies, as far as Triton's description is beside it."""

    label: str
    manifest: Manifest
    texts: Mapping[str, bytes]
    cubins: Mapping[str, frozenset[tuple[str, int]]]


def of_payload(payload: Payload) -> Subject:
    """A wheel, verified first. Raises DamagedError or NotTrustedError as `verify` does."""
    manifest = verify(payload).manifest
    texts = evidence.read(payload, manifest.texts())
    files = {file.sha256: file for file in manifest.files() if _HOLDING_CUBINS.intersection(file.contains)}
    contents = (payload.read(blob_path(file.sha256), file.size) for file in files.values())
    return Subject(payload.label, manifest, texts, _cubins(contents))


def of_artifacts(artifacts: Artifacts) -> Subject:
    """An artifact directory."""
    manifest = artifacts.contents
    texts = {digest: artifacts.path(source).read_bytes() for source, digest in artifacts.texts().items()}
    sources = {source for _, file, source in artifacts.files() if _HOLDING_CUBINS.intersection(file.contains)}
    contents = (artifacts.path(source).read_bytes() for source in sorted(sources))
    return Subject(str(artifacts.directory), manifest, texts, _cubins(contents))


def evidence_of(artifacts: Artifacts) -> bytes | None:
    """The file that goes into a wheel of these artifacts, None if they keep nothing; raises as `to_bytes` does."""
    if not (artifacts.directory / EVIDENCE).is_dir():
        return None
    return evidence.to_bytes({digest: artifacts.path(s).read_bytes() for s, digest in artifacts.texts().items()})


_KERNEL = re.compile(rb"\x8c\x34[A-Z2-7]{52}")
"""What begins each kernel in torch's pickled bundle of Triton's files: its hash, 52 characters (torch 2.14.0,
`TritonBundler.collect` in _inductor/triton_bundler.py). Its files follow, in any order."""

_DESCRIPTION = re.compile(rb'\{"hash": "[0-9a-f]{64}", "target": ')
"""How the one among them begins that describes the kernel (triton 3.8.0, `compile` in compiler/compiler.py)."""


def _cubins(contents: Iterable[bytes]) -> dict[str, frozenset[tuple[str, int]]]:
    found: dict[str, frozenset[tuple[str, int]]] = {}
    for data in contents:
        begins = [match.start() for match in _KERNEL.finditer(data)]
        end = 0
        for one in cubin.embedded(data):
            end = data.index(one, end) + len(one)
            place = bisect.bisect(begins, end)
            kernel = data[begins[place - 1] : begins[place] if place < len(begins) else None] if place else b""
            digest = hashlib.sha256(one).hexdigest()
            found[digest] = found.get(digest, frozenset()) | _described(kernel)
    return found


def _described(files: bytes) -> frozenset[tuple[str, int]]:
    """Name and warps from the description among a kernel's files; nothing if there is not one."""
    begins = [match.start() for match in _DESCRIPTION.finditer(files)]
    if len(begins) != 1:
        return frozenset()
    try:
        document, _ = json.JSONDecoder().raw_decode(files[begins[0] :].decode("utf-8", "replace"))
        return frozenset({(str(document["name"]), int(document["num_warps"]))})
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
