"""The one verifier, of verify, deploy and the plug-in: is a wheel, byte for byte, what its manifest says?

Before the manifest is parsed, `trust` decides whether its origin is good enough here. Without a signature by a trusted
key this proves integrity only: whoever rewrites payload, manifest and RECORD together passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from model_cache.errors import DamagedError, ModelCacheError, NotTrustedError
from model_cache.origin import signature
from model_cache.origin.trust import Origin, Trust
from model_cache.wheel import manifest as manifests
from model_cache.wheel import parallel
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import normalize, printable
from model_cache.wheel.payload import Payload, entry_point

CHUNK = 1024 * 1024
MAX_PROBLEMS = 50

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class DeadlineError(ModelCacheError):
    """The time that was allowed is over; nothing was changed."""

    kind = "timeout"


class Deadline:
    """A point in time after which work stops. seconds: from now; None: never."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def remaining(self) -> float | None:
        """Seconds left (not below 0), None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise DeadlineError when the time is over."""
        if self.remaining() == 0.0:
            raise DeadlineError(f"gave up after {self.seconds:g} s")


@dataclass(frozen=True)
class Verified:
    """A wheel whose every byte was checked. manifest_sha256: of the manifest's exact bytes.

    signatures_sha256: of the signature file's, None without one. origin: what this host thinks of its signer.
    """

    manifest: Manifest
    manifest_sha256: str
    signatures_sha256: str | None
    origin: Origin


def blob_path(sha256: str) -> str:
    """Where content `sha256` lies in a data package."""
    return f"blobs/{sha256[:2]}/{sha256}"


@contextmanager
def _readable(payload: Payload) -> Iterator[None]:
    """A disk that fails is not a wheel that is damaged."""
    try:
        yield
    except OSError as error:
        raise ModelCacheError(f"{payload.label}: cannot be read: {error.strerror or error}") from error


def read_manifest(payload: Payload, trust: Trust | None = None) -> Verified:
    """Check everything of `payload` but its blobs' contents.

    trust: what is asked of its origin, by default what this host asks. Raises DamagedError with all problems,
    NotTrustedError when the origin is not good enough.
    """
    with _readable(payload):
        return _read_manifest(payload, trust or Trust.of_this_host())


def origin(payload: Payload, trust: Trust) -> Origin:
    """Only who has signed a wheel; its manifest is not parsed. Raises NotTrustedError as `trust.judge` does."""
    with _readable(payload):
        return _judged(payload, payload.files(), trust)[2]


def _judged(payload: Payload, files: dict[str, int], trust: Trust) -> tuple[bytes, bytes | None, Origin]:
    """The manifest's bytes, those of the signature file (None without one), and whose they are."""
    data = payload.read(manifests.FILE_NAME, manifests.MAX_BYTES)
    signed = signature.FILE_NAME in files
    signatures = payload.read(signature.FILE_NAME, signature.MAX_BYTES) if signed else None
    return data, signatures, trust.judge(payload, data, signatures)


def _read_manifest(payload: Payload, trust: Trust) -> Verified:
    from hashlib import sha256

    files = payload.files()
    data, signatures, origin = _judged(payload, files, trust)
    package = entry_point(payload)
    if package != payload.package:
        raise DamagedError(
            f"{payload.label}: its entry point names {printable(package)!r:.80}, not {payload.package!r}"
        )
    manifest = manifests.parse(data, f"{payload.label}: {manifests.FILE_NAME}")
    problems = _identity_problems(payload, manifest)
    problems += _listing_problems(files, manifest, partial=payload.partial)
    if problems:
        raise DamagedError(f"{payload.label}: does not agree with its manifest", problems[:MAX_PROBLEMS])
    signatures_sha256 = None if signatures is None else sha256(signatures).hexdigest()
    return Verified(manifest, sha256(data).hexdigest(), signatures_sha256, origin)


def verify(
    payload: Payload,
    deadline: Deadline | None = None,
    progress: Progress | None = None,
    trust: Trust | None = None,
) -> Verified:
    """Check every byte of `payload` against its manifest, and an archive also against its own RECORD.

    trust: as for `read_manifest`. Raises DamagedError with all problems found, NotTrustedError, DeadlineError when
    `deadline` passes before the end.
    """
    trust = trust or Trust.of_this_host()
    deadline = deadline or Deadline()
    with _readable(payload):
        verified = _read_manifest(payload, trust)
        problems = _blob_problems(payload, verified.manifest, deadline, progress)
        claims = payload.digests()
        if claims is not None:
            problems += _record_problems(payload, verified, claims)
        if problems:
            raise DamagedError(f"{payload.label}: does not agree with its manifest", problems[:MAX_PROBLEMS])
        if trust.policy == "require":
            _require_known_pickles(payload, verified.manifest, deadline)
    return verified


def _require_known_pickles(payload: Payload, manifest: Manifest, deadline: Deadline) -> None:
    """Raise NotTrustedError when a pickle would import what the engine's own artifacts never need."""
    from model_cache.wheel.contents import look

    problems = [f"{one.path}: {text}" for one in look(payload, manifest, deadline.check) for text in one.problems]
    if problems:
        raise NotTrustedError(
            f"{payload.label}: its pickles do what no artifact of {manifest.engine.name} does, and this host requires "
            "more than a good hash",
            problems[:MAX_PROBLEMS],
        )


def copy_hash(source: IO[bytes], write: Callable[[bytes], object], limit: int, deadline: Deadline) -> tuple[str, int]:
    """Read `source` to its end (or one byte past `limit`), hand each chunk to `write`; (sha256, bytes)."""
    from hashlib import sha256

    digest = sha256()
    size = 0
    while size <= limit and (data := source.read(min(CHUNK, limit - size + 1))):
        deadline.check()
        digest.update(data)
        write(data)
        size += len(data)
    return digest.hexdigest(), size


def hash_file(source: IO[bytes], limit: int, deadline: Deadline) -> tuple[str, int]:
    """(sha256, size) of `source`, read at most one byte past `limit`."""
    return copy_hash(source, len, limit, deadline)


def _identity_problems(payload: Payload, manifest: Manifest) -> list[str]:
    problems = []
    headers = _headers(payload)
    for field, declared in (("Name", manifest.name), ("Version", manifest.version)):
        values = headers.get(field, [])
        same = [normalize(value) if field == "Name" else value for value in values]
        if same != [normalize(declared) if field == "Name" else declared]:
            shown = ", ".join(printable(value)[:80] for value in values) or "nothing"
            problems.append(f"METADATA says {field}: {shown}; the manifest says {declared}")
    if (payload.name, payload.version) != (normalize(manifest.name), manifest.version):
        problems.append(
            f"it is named {payload.name} {payload.version}; the manifest says {manifest.name} {manifest.version}"
        )
    return problems


def _headers(payload: Payload) -> dict[str, list[str]]:
    """The Name and Version header lines of METADATA (its head ends at the first empty line)."""
    head = payload.metadata("METADATA").decode("utf-8", "replace").partition("\n\n")[0]
    found: dict[str, list[str]] = {}
    for line in head.splitlines():
        key, _, value = line.partition(":")
        if key in ("Name", "Version"):
            found.setdefault(key, []).append(value.strip())
    return found


def _listing_problems(files: dict[str, int], manifest: Manifest, *, partial: bool) -> list[str]:
    expected = {blob_path(digest): size for digest, size in manifest.blobs().items()}
    problems = [] if partial else [f"{path} is missing" for path in sorted(expected.keys() - files.keys())]
    unlisted = sorted(files.keys() - expected.keys() - {manifests.FILE_NAME, signature.FILE_NAME})
    problems += [f"{printable(path)} is not listed" for path in unlisted]
    problems += [
        f"{path} has {files[path]} bytes instead of {expected[path]}"
        for path in sorted(expected.keys() & files.keys())
        if files[path] != expected[path]
    ]
    return problems


def _blob_problems(payload: Payload, manifest: Manifest, deadline: Deadline, progress: Progress | None) -> list[str]:
    problems = []
    blobs = manifest.blobs()
    if payload.partial:
        there = payload.files()
        blobs = {digest: size for digest, size in blobs.items() if blob_path(digest) in there}
    total, done = sum(blobs.values()), 0
    names = {file.sha256: f"{entry.directory}/{file.path}" for entry in manifest.entries for file in entry.files}

    def hash_blob(blob: tuple[str, int]) -> tuple[str, int]:
        deadline.check()
        with payload.open(blob_path(blob[0])) as source:
            return hash_file(source, blob[1], deadline)

    listed = sorted(blobs.items())
    for (digest, size), found in zip(listed, parallel.each(hash_blob, listed, total), strict=True):
        if found != (digest, size):
            problems.append(f"{blob_path(digest)} has other content (it is {names[digest]})")
        done += size
        if progress:
            progress(done, total)
    return problems


def _record_problems(payload: Payload, verified: Verified, claims: dict[str, str]) -> list[str]:
    """RECORD against what the manifest has proven, and against the small files that it does not cover."""
    from hashlib import sha256

    proven = {f"{payload.package}/{blob_path(digest)}": digest for digest in verified.manifest.blobs()}
    proven[f"{payload.package}/{manifests.FILE_NAME}"] = verified.manifest_sha256
    if verified.signatures_sha256:
        proven[f"{payload.package}/{signature.FILE_NAME}"] = verified.signatures_sha256
    problems = []
    for path, claim in sorted(claims.items()):
        digest = proven.get(path)
        if digest is None:
            digest = sha256(payload.metadata(path.partition("/")[2])).hexdigest()
        if digest != claim:
            problems.append(f"{printable(path)} is not what RECORD says")
    return problems
