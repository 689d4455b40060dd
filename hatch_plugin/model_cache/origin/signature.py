"""`manifest.sig`: the signatures that lie beside a manifest. Small, strict, bounded; nothing here checks a signature.

What is signed is a statement followed by the manifest's exact bytes. The statement names the key, the times that the
signer gave, and the digests of the small files that the manifest does not cover (METADATA can name dependencies,
entry_points.txt can name code), so none of them can be changed without the signer either.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from model_cache.errors import DamagedError
from model_cache.wheel.names import unsafe_path
from model_cache.wheel.strict_json import Fields, loads

FILE_NAME = "manifest.sig"
"""The only file of a data package, besides the manifest, that the manifest does not list."""

SCHEMA_VERSION = 1
MAX_BYTES = 64 * 1024
MAX_SIGNATURES = 8
MAX_FILES = 64
ED25519, SIGSTORE = "ed25519", "sigstore"
ALGORITHMS = frozenset({ED25519, SIGSTORE})

_CONTEXT = b"model-cache signature 1\n"
_KEY = re.compile(r"[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VALUES = {
    ED25519: re.compile(r"[A-Za-z0-9+/]{86}=="),
    SIGSTORE: re.compile(r"([A-Za-z0-9+/]{4}){1,8000}[A-Za-z0-9+/=]{4}"),
}
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@dataclass(frozen=True)
class Signature:
    """One signature. key: id of the public key (sha256 of its 32 bytes, hex); value: the 64 bytes.

    Of algorithm "sigstore", key is `identity.key_id` of the signer, and value a Sigstore bundle (JSON).
    created, expires: as the signer gave them, UTC (`2027-01-31T00:00:00Z`), None when not given.
    dist_info: name → sha256 (hex) of every file of the dist-info directory but RECORD.
    """

    key: str
    dist_info: Mapping[str, str]
    created: str | None = None
    expires: str | None = None
    value: bytes = b""
    algorithm: str = ED25519

    def message(self, manifest: bytes) -> bytes:
        """The exact bytes that are signed for a manifest's bytes.

        They name the key; a bundle names its signer itself, who need not be known before.
        """
        statement = {
            "algorithm": self.algorithm,
            "created": self.created,
            "dist_info": dict(self.dist_info),
            "expires": self.expires,
            "key": self.key if self.algorithm == ED25519 else None,
        }
        text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return _CONTEXT + text.encode() + b"\n" + manifest


def short(key: str) -> str:
    """A key's id as people read it: its first 16 digits."""
    return key[:16]


def timestamp(text: str) -> float:
    """Seconds since the epoch of a time as signatures write it. Raises ValueError for another form or no such time."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text!r:.40} is not a time like 2027-01-31T00:00:00Z")
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def to_bytes(signatures: Sequence[Signature]) -> bytes:
    """The file's bytes: the same signatures, in any order, always give the same bytes."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "signatures": [
            {
                "algorithm": signature.algorithm,
                "created": signature.created,
                "dist_info": dict(signature.dist_info),
                "expires": signature.expires,
                "key": signature.key,
                "signature": base64.b64encode(signature.value).decode(),
            }
            for signature in sorted(signatures, key=lambda signature: signature.key)
        ],
    }
    return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


def parse(data: bytes, what: str = FILE_NAME) -> tuple[Signature, ...]:
    """Read a signature file; what: names it in errors.

    Raises DamagedError with every problem. There is one spelling of every content: bytes that `to_bytes` would not
    write are refused, so nothing can be hidden in this file.
    """
    problems: list[str] = []
    document = Fields(loads(data, what, MAX_BYTES), "", problems)
    if document.integer("schema_version") != SCHEMA_VERSION:
        problems.append(f"schema_version must be {SCHEMA_VERSION}")
    found = document.objects("signatures", _signature, least=1)
    document.done()
    if len(found) > MAX_SIGNATURES:
        problems.append(f"signatures holds more than {MAX_SIGNATURES} items")
    if len({signature.key for signature in found}) != len(found):
        problems.append("signatures holds two of one key")
    if not problems and to_bytes(found) != data:
        problems.append("is not written in the one form that this file has")
    if problems:
        raise DamagedError(f"{what}: is not a valid signature file", problems)
    return found


def _signature(f: Fields) -> Signature:
    algorithm = f.text("algorithm", choices=ALGORITHMS) or ED25519
    value = f.text("signature", _VALUES[algorithm])
    return Signature(
        algorithm=algorithm,
        key=f.text("key", _KEY),
        created=_time(f, "created"),
        expires=_time(f, "expires"),
        dist_info=_digests(f),
        value=_bytes(value),
    )


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""  # written again, it is another text


def _time(f: Fields, key: str) -> str | None:
    text = f.optional_text(key, _TIME)
    if text:
        try:
            timestamp(text)
        except ValueError:
            f.problem(key, "is no time that exists")
    return text


def _digests(f: Fields) -> dict[str, str]:
    found = f.text_mapping("dist_info")
    if len(found) > MAX_FILES:
        f.problem("dist_info", f"names more than {MAX_FILES} files")
    for name, digest in found.items():
        if unsafe_path(name) or name == "RECORD":
            f.problem("dist_info", f"holds a name that cannot be there: {name!r:.80}")
        if not _SHA256.fullmatch(digest):
            f.problem("dist_info", f"has no sha256 for {name!r:.80}")
    return found
