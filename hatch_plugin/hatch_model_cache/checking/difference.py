"""What differs between two wheels: values of the manifests, keys, and kernels, down to their machine code."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hatch_model_cache import cubin
from model_cache.wheel.manifest import Entry, File, Manifest
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import blob_path, verify

ABSENT = None
_CODE = ".text."  # the sections of a cubin that hold machine code


@dataclass(frozen=True)
class Difference:
    """One thing in which two wheels differ.

    Attributes:
        area: ``identity``, ``model``, ``engine``, ``target``, ``serve``, ``build``, ``host``, ``unkeyed``, ``factor``,
            ``key``, ``kernel`` or ``file``.
        what: its name within the area.
        first, second: the value on both sides as text; None where one side has none.
        note: what follows from it, or ``""``.
    """

    area: str
    what: str
    first: str | None
    second: str | None
    note: str = ""


@dataclass(frozen=True)
class Side:
    """One verified wheel."""

    payload: Payload
    manifest: Manifest

    @classmethod
    def of(cls, payload: Payload) -> Side:
        """Verify every byte first: what is damaged differs in nothing that could be explained."""
        return cls(payload, verify(payload).manifest)

    def read(self, file: File) -> bytes:
        """The content of one file of an entry."""
        return self.payload.read(blob_path(file.sha256), file.size)


def differences(first: Side, second: Side) -> list[Difference]:
    """Everything that differs, the causes before the effects: values, then keys, then kernels, then files."""
    found = list(_values(first.manifest, second.manifest))
    found += _factors(first.manifest, second.manifest)
    found += _keys(first.manifest, second.manifest)
    return [*found, *_kernels(first, second), *_files(first, second)]


def _values(first: Manifest, second: Manifest) -> Iterator[Difference]:
    """The parts of a manifest that are plain values."""
    for side in ("name", "version"):
        yield from _compared("identity", {side: getattr(first, side)}, {side: getattr(second, side)})
    for area in ("model", "engine", "serve", "build"):
        yield from _compared(area, asdict(getattr(first, area)), asdict(getattr(second, area)))
    ours, theirs = ({t.name: asdict(t) for t in side.targets} for side in (first, second))
    yield from _compared("target", ours, theirs)
    yield from _compared("host", first.host_answers, second.host_answers)
    yield from _compared("unkeyed", first.unkeyed, second.unkeyed)


def _compared(area: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    ours, theirs = _flat(first), _flat(second)
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            yield Difference(area, name, ours.get(name), theirs.get(name))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as dotted names; everything else as text."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat


Slot = tuple[str, str, str]
"""What a key is for: target, the compiled model's prefix, the served name."""


def _slots(manifest: Manifest) -> dict[Slot, list[Entry]]:
    """A served name may have several keys (a Hub id has two in vllm 0.33.0), so a slot has a list."""
    slots: dict[Slot, list[Entry]] = defaultdict(list)
    for entry in sorted(manifest.entries, key=lambda entry: entry.key):
        slots[entry.target, entry.prefix, entry.served_as].append(entry)
    return slots


def _label(slot: Slot) -> str:
    target, prefix, served_as = slot
    return f"{prefix} for {target} as {served_as}"


def _factors(first: Manifest, second: Manifest) -> list[Difference]:
    """The named values in the keys; a value that differs in every slot alike is said once."""
    ours, theirs = _slots(first), _slots(second)
    shared = sorted(ours.keys() & theirs.keys())
    seen: dict[tuple[str, str | None, str | None], list[Slot]] = defaultdict(list)
    for slot in shared:
        for one, other in zip(ours[slot], theirs[slot], strict=False):
            for found in _compared("factor", _all_factors(first, one), _all_factors(second, other)):
                seen[found.what, found.first, found.second].append(slot)
    return [
        Difference("factor", what, one, other, "" if len(slots) >= len(shared) else f"only {_label(slots[0])}")
        for (what, one, other), slots in seen.items()
    ]


def _all_factors(manifest: Manifest, entry: Entry) -> dict[str, str]:
    return {**manifest.factors[entry.factors], **entry.factor_overrides}


def _keys(first: Manifest, second: Manifest) -> Iterator[Difference]:
    ours, theirs = _slots(first), _slots(second)
    for slot in sorted({*ours, *theirs}):
        one, other = ([entry.key for entry in side.get(slot, ())] for side in (ours, theirs))
        if one != other:
            yield Difference("key", _label(slot), ", ".join(one) or ABSENT, ", ".join(other) or ABSENT)


def _kernels(first: Side, second: Side) -> Iterator[Difference]:
    """Kernels are paired by target and name; several of one name are its configurations."""
    ours, theirs = (_by_name(side.manifest) for side in (first, second))
    cubins = _Cubins(first), _Cubins(second)
    for target, name in sorted({*ours, *theirs}):
        one, other = ours.get((target, name), Counter()), theirs.get((target, name), Counter())
        if one != other:
            shas = sorted((one - other).elements()), sorted((other - one).elements())
            texts = [", ".join(sha[:12] for sha in side) or ABSENT for side in shas]
            yield Difference("kernel", f"{name} ({target})", texts[0], texts[1], _what_differs(cubins, shas))


def _by_name(manifest: Manifest) -> dict[tuple[str, str], Counter[str]]:
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for kernel in manifest.kernels:
        found[kernel.target, kernel.name][kernel.sha256] += 1
    return found


class _Cubins:
    """The cubins inside a wheel by their hash; looked for once, when the first one is asked for."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._found: dict[str, bytes] | None = None

    def __getitem__(self, sha256: str) -> bytes | None:
        if self._found is None:
            files = {file.sha256: file for file in self._side.manifest.files() if "cubin" in file.contains}
            self._found = {
                hashlib.sha256(one).hexdigest(): one
                for file in files.values()
                for one in cubin.embedded(self._side.read(file))
            }
        return self._found.get(sha256)


def _what_differs(cubins: tuple[_Cubins, _Cubins], shas: tuple[list[str], list[str]]) -> str:
    """For one kernel on each side: whether the machine code differs, or only what lies around it."""
    if len(shas[0]) != 1 or len(shas[1]) != 1:
        return "" if shas[0] and shas[1] else f"only in the {'first' if shas[0] else 'second'} wheel"
    pair = [side[sha] for side, [sha] in zip(cubins, shas, strict=True)]
    if pair[0] is None or pair[1] is None:
        return "the cubin itself is not in the wheel as it is"
    try:
        one, other = (cubin.sections(data) for data in pair if data is not None)
    except cubin.CubinError as error:
        return f"cannot be compared: {error}"
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    if any(name.startswith(_CODE) for name in names):
        return "the machine code differs"
    return f"the same machine code; differs in {', '.join(names) or 'the header only'}"


def _files(first: Side, second: Side) -> Iterator[Difference]:
    """Files that both wheels put into the same place, with other bytes; equal contents are compared once."""
    ours, theirs = (_places(side.manifest) for side in (first, second))
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    by_sha = {file.sha256: file for side in (ours, theirs) for file in side.values()}
    for place in sorted(ours.keys() & theirs.keys()):
        if ours[place].sha256 != theirs[place].sha256:
            pairs[ours[place].sha256, theirs[place].sha256].append(place)
    for (one, other), places in pairs.items():
        note = _about(first.read(by_sha[one]), second.read(by_sha[other]))
        more = f" (and {len(places) - 1} more places)" if len(places) > 1 else ""
        yield Difference("file", f"{places[0]}{more}", one[:12], other[:12], note)


def _places(manifest: Manifest) -> dict[str, File]:
    return {f"{entry.directory}/{file.path}": file for entry in manifest.entries for file in entry.files}


def _about(first: bytes, second: bytes) -> str:
    sizes = f"{len(first)} and {len(second)} bytes"
    one, other = (Counter(hashlib.sha256(c).digest() for c in cubin.embedded(data)) for data in (first, second))
    if not one and not other:
        return sizes
    if one == other:
        return f"{sizes}; the same {one.total()} kernels in it, the rest differs"
    return f"{sizes}; {(one & other).total()} kernels in it are the same, {(one - other).total()} are not"
