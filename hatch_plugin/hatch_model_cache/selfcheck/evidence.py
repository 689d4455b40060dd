"""What a wheel's kernels were made from: one compressed file in its dist-info, for no engine and no deploy."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Collection, Mapping

from model_cache.errors import DamagedError, UsageError
from model_cache.wheel.payload import MAX_METADATA_BYTES, Payload

NAME = "evidence.json.xz"
"""An object: SHA-256 → text."""

_MEMBER = f"extra_metadata/{NAME}"  # where hatchling puts what a build adds to dist-info
_MAX_BYTES = 256 << 20


def to_bytes(texts: Mapping[str, bytes]) -> bytes:
    """The file for these texts, the same for the same texts.

    Raises:
        UsageError: if it would be larger than a wheel's dist-info may hold.
    """
    document = json.dumps({digest: text.decode() for digest, text in texts.items()}, sort_keys=True)
    data = lzma.compress(document.encode(), preset=6)
    if len(data) > MAX_METADATA_BYTES:
        raise UsageError(
            f"what the kernels were made from has {len(data)} bytes, a wheel takes {MAX_METADATA_BYTES}: "
            "build a wheel for each target, or leave `keep` away and check the recipe's directory"
        )
    return data


def read(payload: Payload, wanted: Collection[str]) -> dict[str, bytes]:
    """The texts among `wanted` (SHA-256) that a wheel has; empty if it keeps none.

    Raises:
        DamagedError: if the file is no such file, or a text is not what its name says.
    """
    try:
        data = payload.metadata(_MEMBER)
    except DamagedError:
        return {}  # not there; a wheel that keeps nothing is the normal case
    what = f"{payload.label}: {NAME}"
    try:
        decompressor = lzma.LZMADecompressor(memlimit=_MAX_BYTES)
        plain = decompressor.decompress(data, _MAX_BYTES)
        document = json.loads(plain) if decompressor.eof else None
    except (lzma.LZMAError, ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not all(isinstance(text, str) for text in document.values()):
        raise DamagedError(f"{what} cannot be read")
    found = {digest: document[digest].encode("utf-8", "surrogatepass") for digest in wanted if digest in document}
    if any(hashlib.sha256(text).hexdigest() != digest for digest, text in found.items()):
        raise DamagedError(f"{what} holds another text than the manifest names")
    return found
