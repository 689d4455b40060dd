from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factories import CONTENTS, DELETE, NAME, install, make_document, make_site, make_wheel, sha
from model_cache.errors import DamagedError
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.discovery import find
from model_cache.wheel.names import data_package
from model_cache.wheel.payload import InstalledPayload
from model_cache.wheel.verify import Deadline, DeadlineError, Verified, blob_path, read_manifest, verify

PACKAGE = data_package(NAME)
INFO = f"{PACKAGE}-1.0.0.dist-info"
FIRST = blob_path(sha(b"first model"))


def check(place: Path, **options: Any) -> Verified:
    """Verify a wheel file or a site directory."""
    if place.suffix == ".whl":
        with WheelPayload(str(place)) as archive:
            return verify(archive, **options)
    with InstalledPayload(find(NAME, [str(place)])[0]) as payload:
        return verify(payload, **options)


def problems(place: Path) -> list[str]:
    with pytest.raises(DamagedError) as caught:
        check(place)
    return [caught.value.message, *caught.value.problems]


def both(tmp_path: Path, **options: Any) -> list[Path]:
    """The same wheel as a file and installed."""
    wheel = make_wheel(tmp_path / "dist", **options)
    return [wheel, install(wheel, tmp_path / "site")]


def test_an_intact_wheel_is_verified_alike_in_both_forms(tmp_path: Path) -> None:
    wheel, site = both(tmp_path)
    assert check(wheel) == check(site)
    manifest = (site / PACKAGE / "manifest.json").read_bytes()
    assert check(site).manifest_sha256 == sha(manifest)


@pytest.mark.parametrize("position", [0, 5, -1])
@pytest.mark.parametrize("content", [data for files in CONTENTS.values() for data in files.values()][:3], ids=len)
def test_one_changed_byte_is_found_and_the_file_named(tmp_path: Path, content: bytes, position: int) -> None:
    def flip(files: dict[str, bytes]) -> None:
        data = bytearray(content)
        data[position] ^= 1
        files[f"{PACKAGE}/{blob_path(sha(content))}"] = bytes(data)

    for place in both(tmp_path, edit=flip):  # also with a RECORD that agrees with the change
        found = problems(place)
        assert any(blob_path(sha(content)) in line and "rank_" in line for line in found), found


MEMBERS: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "blob missing": (lambda f: f.pop(f"{PACKAGE}/{FIRST}"), f"{FIRST} is missing"),
    "blob longer": (lambda f: f.update({f"{PACKAGE}/{FIRST}": b"first model!"}), "has 12 bytes instead of 11"),
    "blob unlisted": (lambda f: f.update({f"{PACKAGE}/{blob_path(sha(b'x'))}": b"x"}), "is not listed"),
    "module unlisted": (lambda f: f.update({f"{PACKAGE}/__init__.py": b"x"}), "__init__.py is not listed"),
    "no manifest": (lambda f: f.pop(f"{PACKAGE}/manifest.json"), "manifest.json is missing"),
    "no metadata": (lambda f: f.pop(f"{INFO}/METADATA"), "METADATA is missing"),
    "no entry points": (lambda f: f.pop(f"{INFO}/entry_points.txt"), "entry_points.txt is missing"),
    "other name": (
        lambda f: f.update({f"{INFO}/METADATA": b"Name: model-cache-b\nVersion: 1.0.0\n\n"}),
        "METADATA says Name: model-cache-b; the manifest says",
    ),
    "two names": (
        lambda f: f.update({f"{INFO}/METADATA": f"Name: {NAME}\nName: {NAME}\nVersion: 1.0.0\n\n".encode()}),
        "METADATA says Name",
    ),
    "other version": (
        lambda f: f.update({f"{INFO}/METADATA": f"Name: {NAME}\nVersion: 2\n\n".encode()}),
        "METADATA says Version: 2; the manifest says 1.0.0",
    ),
    "version in the description only": (
        lambda f: f.update({f"{INFO}/METADATA": f"Name: {NAME}\n\nVersion: 1.0.0\n".encode()}),
        "METADATA says Version: nothing",
    ),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_files_that_disagree_with_the_manifest_are_named(tmp_path: Path, name: str) -> None:
    edit, message = MEMBERS[name]
    for place in both(tmp_path, edit=edit):
        assert any(message in line for line in problems(place)), problems(place)


@pytest.mark.parametrize("changes", [{"name": "model-cache-other"}, {"version": "1.0.1"}])
def test_a_manifest_of_another_wheel_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    import json

    other = make_document()
    other.update(changes)

    def swap(files: dict[str, bytes]) -> None:
        files[f"{PACKAGE}/manifest.json"] = json.dumps(other).encode()

    for place in both(tmp_path, edit=swap):
        assert any("it is named" in line for line in problems(place))


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    (site / PACKAGE / "one").touch()
    (site / PACKAGE / "two").touch()
    (site / PACKAGE / FIRST).unlink()
    text = "\n".join(problems(site))
    for part in ("one is not listed", "two is not listed", f"{FIRST} is missing"):
        assert part in text


def test_a_wrong_manifest_is_refused_before_anything_else_is_read(tmp_path: Path) -> None:
    for place in both(tmp_path, changes={"engine.python": DELETE}):
        assert any("engine.python is missing" in line for line in problems(place))


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_nothing_is_unpickled_or_imported(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    contents = {"a/b": {"model": pickle.dumps(Trap(trap)), "x.py": f"import os\nos.mkdir({str(trap)!r})\n".encode()}}
    wheel = make_wheel(tmp_path / "dist", contents)
    check(wheel)
    check(install(wheel, tmp_path / "site"))
    assert not trap.exists()
    pickle.loads(contents["a/b"]["model"])  # the trap works
    assert trap.exists()


def test_a_passed_deadline_stops_it(tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match="gave up after 0 s"):
        check(make_site(tmp_path), deadline=Deadline(0))
    check(tmp_path / "site", deadline=Deadline(60))
    assert Deadline().remaining() is None


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verified = check(make_site(tmp_path), progress=lambda done, total: seen.append((done, total)))
    total = sum(verified.manifest.blobs().values())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_reading_the_manifest_does_not_read_the_blobs(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    (site / PACKAGE / FIRST).write_bytes(b"FIRST MODEL")
    with InstalledPayload(find(NAME, [str(site)])[0]) as payload:
        assert read_manifest(payload).manifest.name == NAME
    assert problems(site)


def test_verifying_needs_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    size = 64 * 1024 * 1024
    site = make_site(tmp_path, contents={"a/b": {"big": bytes(size)}})
    tracemalloc.start()
    check(site)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
