"""Names: distributions, data packages, and the relative paths a manifest may hold; how messages show such things."""

from __future__ import annotations

import re

PREFIX = "model-cache-"
"""Every wheel's distribution name starts with this."""

RESERVED = ".model-cache"
"""Directory below a cache root that holds our state; no entry may use a part that starts with it."""

MAX_PATH_BYTES = 1024
MAX_PART_BYTES = 255

_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Also what turns the direction of writing around, and surrogates, which stand for bytes that are no text.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def normalize(name: str) -> str:
    """The PEP 503 form of a distribution's name: two names that agree here are one project."""
    return re.sub(r"[-_.]+", "-", name).lower()


def data_package(name: str) -> str:
    """The import-path name of the data package of distribution `name`: PEP 503 form with "_"."""
    return normalize(name).replace("-", "_")


def unsafe_path(path: str) -> str | None:
    """Why `path` may not be used as a relative path below a root; None when it may.

    Names are judged alike on every system, so that one wheel is either good or bad everywhere: "/" is
    the only separator, a backslash or a drive letter is refused on POSIX too.
    """
    if not path:
        return "is empty"
    if _SURROGATE.search(path):
        return "is not valid Unicode"
    if _CONTROL.search(path):
        return "holds a control character"
    if "\\" in path:
        return "holds a backslash"
    if path.startswith("/"):
        return "is absolute"
    if _DRIVE.match(path):
        return "starts with a drive letter"
    if len(path.encode()) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    for part in path.split("/"):
        if not part:
            return "has an empty part"
        if part in (".", ".."):
            return f"has a part {part!r}"
        if len(part.encode()) > MAX_PART_BYTES:
            return f"has a part longer than {MAX_PART_BYTES} bytes"
        if part.casefold().startswith(RESERVED):
            return f"has a part that starts with {RESERVED!r}, which is reserved"
    return None


def folded(path: str) -> str:
    """A form in which two paths agree when some file system would store them under one name."""
    if path.isascii():
        return path.lower()
    import unicodedata

    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", path).casefold())


def printable(text: str) -> str:
    """`text` with control characters and surrogates escaped: a wheel may not steer a terminal or forge a log line,
    and what cannot be encoded may not end a command."""
    return _UNPRINTABLE.sub(_escaped, text)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things for people: "1 file", "2 files"; many: the plural where it is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
