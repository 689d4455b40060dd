"""`max-wheel-size`: how large a finished wheel may be, and where its bytes are when it is larger."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from fractions import Fraction
from pathlib import Path

from model_cache.errors import UsageError
from model_cache.store.files import human
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.verify import blob_path

__all__ = ["check_size", "parse_size", "size_problem"]

_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kMG]B|[KMG]iB)")
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_size(text: str) -> int:
    """The bytes that `text` ("100 MB", "1.5 GiB") means. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(text)
    size = int(Fraction(match[1]) * _UNITS[match[2]]) if match else 0
    if not size:
        raise ValueError(f'must be a size like "100 MB" or "2 GiB", not {text!r:.80}.')
    return size


def size_problem(text: str) -> str | None:
    """What is wrong with the option's value."""
    try:
        parse_size(text)
    except ValueError as error:
        return str(error)
    return None


def check_size(wheel: Path, manifest: Manifest, package: str, limit: int) -> None:
    """Raise UsageError when `wheel` has more than `limit` bytes, with the packed size of each part of it."""
    size = wheel.stat().st_size
    if size <= limit:
        return
    parts = _sizes(wheel, manifest, package)
    raise UsageError(
        f"The wheel has {human(size)}, more than `max-wheel-size` allows ({human(limit)}), and is deleted. "
        "A recipe for each target gives smaller wheels; an index of your own need have no limit.",
        [f"{part}: {human(packed)}" for part, packed in parts.most_common()],
    )


def _sizes(wheel: Path, manifest: Manifest, package: str) -> Counter[str]:
    """Part of the wheel in words → bytes as they are packed. What two parts share counts for the first."""
    owners: dict[str, str] = {}
    for entry in manifest.entries:
        for file in entry.files:
            owners.setdefault(f"{package}/{blob_path(file.sha256)}", f"{entry.component} for {entry.target}")
    sizes: Counter[str] = Counter()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            sizes[owners.get(info.filename, "manifest and metadata")] += info.compress_size
    return sizes
