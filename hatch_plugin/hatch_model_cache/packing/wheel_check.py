"""Whether a finished wheel is the one that was prepared: data only, every byte, and the metadata."""

from __future__ import annotations

import base64
import configparser
import csv
import io
import re
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from hatch_model_cache.packing.pack import Packed, blob_path
from hatch_model_cache.recipe.naming import ENTRY_POINT_GROUP
from model_cache.wheel.names import normalize

_DIST_INFO = re.compile(r"[^/]+\.dist-info/.+")


def check_wheel(path: Path, packed: Packed, package: str) -> list[str]:
    """Problems of the wheel at `path`, one line each; package: the data package's name.

    It trusts RECORD, which hatchling computes from the bytes that it writes: a file that changed between
    pack's look and hatchling's is found here.
    """
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        info = next(name.split("/")[0] for name in names if _DIST_INFO.fullmatch(name))
        texts = {
            member: wheel.read(f"{info}/{member}").decode() if f"{info}/{member}" in names else ""
            for member in ("METADATA", "RECORD", "entry_points.txt")
        }
    expected = {f"{package}/{blob_path(digest)}": digest for digest in packed.blobs}
    expected[f"{package}/manifest.json"] = _sha256(packed.manifest_bytes)
    recorded = _record(texts["RECORD"])
    problems = [
        f"{name}: is no part of a model cache; take the option that includes it out of pyproject.toml"
        for name in names
        if name not in expected and not name.startswith(f"{info}/")
    ]
    problems += [f"{name}: is missing" for name in sorted(expected.keys() - set(names))]
    problems += [
        f"{name}: changed while the wheel was packed"
        for name in sorted(expected.keys() & set(names))
        if recorded.get(name) != expected[name]
    ]
    return problems + _metadata_problems(texts, packed, package)


def _metadata_problems(texts: dict[str, str], packed: Packed, package: str) -> list[str]:
    problems = []
    entry_points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    entry_points.optionxform = str  # type: ignore[method-assign,assignment]
    entry_points.read_string(texts["entry_points.txt"])
    name = packed.manifest.name
    if entry_points.get(ENTRY_POINT_GROUP, name, fallback=None) != package:
        problems.append(f"entry_points.txt: has no `{name} = {package}` in [{ENTRY_POINT_GROUP}]")
    metadata = HeaderParser().parsestr(texts["METADATA"])
    if normalize(metadata["Name"]) != normalize(name):
        problems.append(f"METADATA: Name is {metadata['Name']}, the manifest's is {name}")
    requirements = [
        normalize(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
        for requirement in metadata.get_all("Requires-Dist", [])
    ]
    if requirements.count("hatch-model-cache") != 1:
        problems.append("METADATA: does not require hatch-model-cache exactly once")
    return problems


def _record(text: str) -> dict[str, str]:
    """member -> sha256 (hex) as a wheel's RECORD says."""
    found = {}
    for name, digest, _ in csv.reader(io.StringIO(text)):
        algorithm, _, value = digest.partition("=")
        if algorithm == "sha256":
            found[name] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return found


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
