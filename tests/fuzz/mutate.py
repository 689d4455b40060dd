"""Makes hostile inputs out of valid ones: changes of bytes, of JSON values, and of a zip archive's records."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

WORDS = (
    *(b"../", b"/etc/passwd", b"\\", b"\x00", b"C:", b"\xff\xfe", b".model-cache", b"\r\n", b",,"),
    *(b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06"),
    *(b"{", b"}", b"[" * 20, b'"', b"\\ud800", b"1e999", b"-1", b"9" * 400, b"null", b"NaN"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**63, 2**64, 1.5, [], [[]], {}, {"": 1}, [None] * 50),
    *("", "x", "../x", "/x", "a\\b", "a\x00b", "\ud800", "C:x", "x" * 5000, ".", ".."),
    *("torch_compile_cache/../../x", "1.0.0", "model-cache-x", "0" * 64, "A" * 64),
)


def data(seed: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """`seed` with one to four changes of its bytes."""
    found = bytearray(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        chance.choice(_CHANGES)(found, others, chance)
    return bytes(found)


def _flip(found: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if found:
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)


def _set(found: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if found:
        found[chance.randrange(len(found))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))


def _cut(found: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    del found[chance.randrange(len(found) + 1) :]


def _drop(found: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    start = chance.randrange(len(found) + 1)
    del found[start : start + chance.randint(1, 64)]


def _repeat(found: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    start = chance.randrange(len(found) + 1)
    found[start:start] = found[start : start + chance.randint(1, 200)]


def _insert(found: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    start = chance.randrange(len(found) + 1)
    found[start:start] = chance.choice((*WORDS, chance.randbytes(chance.randint(1, 40))))


def _splice(found: bytearray, others: Sequence[bytes], chance: random.Random) -> None:
    other = chance.choice(others)
    found[chance.randrange(len(found) + 1) :] = other[chance.randrange(len(other) + 1) :]


_CHANGES: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    _flip, _flip, _set, _cut, _drop, _repeat, _insert, _insert, _splice,
)  # fmt: skip


def document(seed: Any, chance: random.Random) -> bytes:
    """A JSON document with one to three values changed, dropped, doubled or moved."""
    found = copy.deepcopy(seed)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _change(found, chance)
    text = json.dumps(found, sort_keys=True, indent=1)
    if chance.random() < 0.1:  # a key twice
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        text = "\n".join([*lines[:at], lines[at], *lines[at:]])
    return text.encode("utf-8", "surrogatepass") + b"\n"


def _change(value: Any, chance: random.Random) -> None:
    while isinstance(value, (dict, list)) and value:
        key: Any = chance.choice([*value]) if isinstance(value, dict) else chance.randrange(len(value))
        inner = value[key]
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.8:
            value = inner
            continue
        what = chance.randrange(4)
        if what == 0:
            value[key] = copy.deepcopy(chance.choice(VALUES))
        elif what == 1:
            del value[key]
        elif what == 2 and isinstance(value, list):
            value.append(copy.deepcopy(inner))
        elif what == 2:
            value[f"{key}x"] = inner
        elif isinstance(inner, str):
            at = chance.randrange(len(inner) + 1)
            value[key] = inner[:at] + chance.choice(("/", "..", "\\", "\n", " ", "A", "\x00", "é")) + inner[at:]
        elif isinstance(inner, int):
            value[key] = inner + chance.choice((1, -1, 2**31))
        return


def archive(seed: bytes, chance: random.Random) -> bytes:
    """A zip archive with one to three fields of its headers changed."""
    found = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 3))):
        signature, fields = chance.choice(
            (
                (b"PK\x03\x04", ((4, "H"), (6, "H"), (8, "H"), (14, "L"), (18, "L"), (22, "L"), (26, "H"), (28, "H"))),
                (b"PK\x01\x02", ((8, "H"), (10, "H"), (16, "L"), (20, "L"), (24, "L"), (28, "H"), (30, "H"), (32, "H"),
                                 (38, "L"), (42, "L"))),
                (b"PK\x05\x06", ((4, "H"), (8, "H"), (10, "H"), (12, "L"), (16, "L"), (20, "H"))),
            )
        )  # fmt: skip
        places = [at for at in range(len(found)) if found[at : at + 4] == signature] if signature in found else []
        if places:
            offset, kind = chance.choice(fields)
            at = chance.choice(places) + offset
            size = struct.calcsize(f"<{kind}")
            limit = 256**size
            new = chance.choice((0, 1, limit - 1, limit // 2, chance.randrange(limit)))
            if at + size <= len(found):
                struct.pack_into(f"<{kind}", found, at, new)
    return bytes(found)
