"""The place of a cache root: judged before the first write; read-only, noexec and network places; the overlay."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factories import (
    BIG,
    CONTENTS,
    ENTRY_ONE,
    ENTRY_TWO,
    NAME,
    expected_files,
    files_of,
    folder_in_memory,
    make_site,
    run,
    snapshot,
)
from model_cache.errors import ModelCacheError, NotFoundError, UsageError
from model_cache.store import files, place
from model_cache.store.deploy import Outcome
from model_cache.store.place import UnsafePlaceError
from model_cache.store.removal import remove
from model_cache.store.root import Root

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root: other owners, mounts")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with folder_in_memory(tmp_path) as folder:
        yield folder / "way" / "root"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a tmpfs with some options at a new directory (or remount what is mounted)."""
    made: list[Path] = []

    def mount(options: str, path: Path | None = None) -> Path:
        here = path or tmp_path / f"mount{len(made)}"
        here.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(here)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("cannot mount a tmpfs here")
        if path is None:
            made.append(here)
        return here

    yield mount
    for here in made:
        subprocess.run(["umount", str(here)], check=True)


# Who could replace what lies there


@pytest.mark.parametrize("where", ["", "torch_compile_cache", "torch_compile_cache/torch_aot_compile", ENTRY_ONE])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_directory_that_everybody_may_write_to_needs_the_sticky_bit(
    site: Path, root: Path, where: str, mode: int
) -> None:
    directory = root / where
    directory.mkdir(parents=True)
    directory.chmod(mode)
    if mode != 0o777:
        run(site, root)
        return
    before = snapshot(root)
    with pytest.raises(UnsafePlaceError, match=r"can be written to by everybody \(mode 0777\)") as caught:
        run(site, root)
    assert "\n" not in str(caught.value)
    assert snapshot(root) == before
    assert not (root / ".model-cache").exists() or where


def test_the_parents_are_judged_too_and_nothing_is_made_in_them(site: Path, root: Path) -> None:
    root.parent.mkdir()
    root.parent.chmod(0o777)
    with pytest.raises(UnsafePlaceError, match=f"{root.parent} can be written to by everybody"):
        run(site, root)
    assert not root.exists()
    root.parent.chmod(0o755)
    run(site, root)
    root.parent.chmod(0o777)
    with pytest.raises(UnsafePlaceError):
        remove(NAME, str(root))


def test_a_volume_that_only_looks_open_can_be_trusted(site: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(parents=True)
    root.chmod(0o777)
    monkeypatch.setenv(place.TRUST, "1")
    run(site, root)
    assert files_of(root) == expected_files()


@needs_root
@pytest.mark.parametrize("where", ["the root", "a parent", "below"])
def test_what_belongs_to_somebody_else_is_refused(site: Path, root: Path, where: str) -> None:
    directory = {"the root": root, "a parent": root.parent, "below": root / "torch_compile_cache"}[where]
    directory.mkdir(parents=True)
    os.chown(directory, 12345, -1)
    with pytest.raises(UnsafePlaceError, match="belongs to user 12345, not to root or to this user"):
        run(site, root)
    assert files_of(root) == {}


@needs_root
def test_a_link_is_judged_like_a_directory(site: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    root.parent.mkdir()
    root.symlink_to(tmp_path / "real")
    run(site, root)
    assert files_of(tmp_path / "real") == expected_files()
    os.lchown(root, 12345, -1)
    with pytest.raises(UnsafePlaceError, match=r"the link .*/root belongs to user 12345"):
        run(site, root)
    os.lchown(root, 0, -1)
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(UnsafePlaceError, match="real can be written to by everybody"):
        run(site, root)


def test_relative_links_dots_and_loops(root: Path) -> None:
    root.mkdir(parents=True)
    (root.parent / "one").symlink_to("../way/./root")
    descriptor = place.open_judged(f"{root.parent}/one/../root")
    assert os.path.samestat(os.fstat(descriptor), root.stat())
    os.close(descriptor)
    (root / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        place.open_judged(f"{root}/loop")
    (root / "file").touch()
    with pytest.raises(NotADirectoryError):
        place.open_judged(f"{root}/file")
    with pytest.raises(ModelCacheError, match="cannot open the cache root"), Root.open(f"{root}/loop", judge=True):
        pass


def test_a_directory_that_becomes_a_link_between_check_and_use_is_not_followed(
    site: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    real = place._look

    def swapped(directory: int, part: str, *, create: bool) -> os.stat_result:
        status = real(directory, part, create=create)
        if part == "root" and not root.is_symlink():
            root.rmdir()
            root.symlink_to(elsewhere)
        return status

    monkeypatch.setattr(place, "_look", swapped)
    with pytest.raises(ModelCacheError, match="cannot open the cache root"):
        run(site, root)
    assert list(elsewhere.iterdir()) == []


def test_what_is_judged_is_what_is_used(
    site: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root is renamed and replaced after it was opened: everything still goes to the directory that was judged."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    real = place.open_judged

    def then_replaced(path: str, *, create: bool = False) -> int:
        descriptor = real(path, create=create)
        root.rename(root.parent / "moved")
        root.symlink_to(elsewhere)
        return descriptor

    monkeypatch.setattr(place, "open_judged", then_replaced)
    run(site, root)
    assert files_of(root.parent / "moved") == expected_files()
    assert list(elsewhere.iterdir()) == []


def test_what_is_made_on_the_way_has_our_mode(site: Path, root: Path) -> None:
    old = os.umask(0o777)
    try:
        run(site, root)
    finally:
        os.umask(old)
    assert stat.S_IMODE(root.parent.stat().st_mode) == stat.S_IMODE(root.stat().st_mode) == 0o755


# Kinds of places


@needs_root
def test_noexec_is_refused_for_shared_objects_only(tmp_path: Path, mounted: Callable[..., Path]) -> None:
    root = mounted("noexec,mode=755")
    library = make_site(tmp_path / "so", changes={"entries.0.files.0.contains": ["shared-object"]})
    with pytest.raises(ModelCacheError, match=r"mounted noexec, and .* holds shared objects") as caught:
        run(library, root)
    assert "\n" not in str(caught.value)
    assert files_of(root) == {}
    run(make_site(tmp_path / "plain"), root)
    assert files_of(root) == expected_files()


@pytest.mark.parametrize("kind", [0x6969, 0x0BD00BD0, 0xFF534D42, -11317950])
def test_a_network_file_system_is_noted_in_one_line(
    site: Path, root: Path, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_file_system_type", lambda root: kind)
    (note,) = run(site, root).notes
    assert place.NETWORKS[kind & 0xFFFFFFFF] in note
    assert "\n" not in note
    assert files_of(root) == expected_files()


def test_a_local_file_system_is_not(site: Path, root: Path, tmp_path: Path) -> None:
    assert run(site, root).notes == ()
    with Root.open(str(root)) as opened:
        assert place._file_system_type(opened.descriptor) in (0x01021994, 0xEF53, 0x9123683E, 0x58465342, 0x794C7630)


@pytest.mark.parametrize("inodes", [3, None])
def test_too_few_inodes_are_told_before_anything_is_written(
    site: Path, root: Path, inodes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Root, "free_files", lambda self: inodes)
    if inodes is None:
        run(site, root)
        return
    with pytest.raises(ModelCacheError, match="no room for more files"):
        run(site, root)
    assert files_of(root) == {}


@needs_root
def test_what_was_deployed_can_be_removed_from_a_disk_that_is_full(site: Path, mounted: Callable[..., Path]) -> None:
    root = mounted("size=128k,mode=755")
    monkey = pytest.MonkeyPatch()
    monkey.setattr(Root, "free_bytes", lambda self: 10**9)
    run(site, root)
    monkey.undo()
    subprocess.run(["dd", "if=/dev/zero", f"of={root}/filler", "bs=4k"], check=False, capture_output=True)
    with pytest.raises(ModelCacheError, match=r"disk is full|not enough space"):
        run(make_site(site.parent / "next", contents={"a/b": {"c": b"d" * 9000}}, version="2.0.0"), root)
    remove(NAME, str(root))
    assert files_of(root).keys() == {"filler"}


# Read-only roots and the overlay


def overlay(site: Path, base: Path, root: Path, **options: Any) -> Outcome:
    return run(site, root, base_path=str(base), **options)


@pytest.fixture
def base(site: Path, mounted: Callable[..., Path]) -> Path:
    """A cache root in which everything is deployed, and that really cannot be written to."""
    base = mounted("mode=755")
    run(site, base)
    mounted("remount,ro", base)
    with pytest.raises(OSError, match="Read-only"):
        (base / "x").touch()
    return base


@needs_root
def test_a_read_only_root_in_which_everything_is_deployed_is_fine_but_told(site: Path, base: Path) -> None:
    for quick in (True, False):
        outcome = run(site, base, quick=quick)
        assert {entry.action for entry in outcome.entries} == {"unchanged"}
        (note,) = outcome.notes
        assert "cannot be written to" in note
        assert "--overlay" in note


@needs_root
def test_a_read_only_root_in_which_something_is_missing_is_one_line(
    site: Path, base: Path, mounted: Callable[..., Path]
) -> None:
    mounted("remount,rw", base)
    (base / ENTRY_ONE / "rank_0_0/model").unlink()
    mounted("remount,ro", base)
    with pytest.raises(ModelCacheError, match="the file system is read-only; give another place") as caught:
        run(site, base)
    assert "\n" not in str(caught.value)


@needs_root
def test_an_overlay_leads_to_the_read_only_files_and_has_room_for_the_engines(
    site: Path, base: Path, root: Path
) -> None:
    outcome = overlay(site, base, root)
    assert {entry.action for entry in outcome.entries} == {"deployed"}
    assert outcome.bytes_written == 0
    path = root / ENTRY_ONE / "rank_0_0/model"
    assert path.readlink() == base / ENTRY_ONE / "rank_0_0/model"
    assert path.read_bytes() == b"first model"
    assert not (root / ENTRY_ONE).is_symlink()
    # As vLLM does it at every start, and as it saves what it has compiled.
    (root / ENTRY_ONE / "inductor_cache").mkdir()
    (root / ENTRY_ONE / "inductor_cache/x").write_bytes(b"added")
    # Nothing to do the next time, for whoever asks.
    assert not overlay(site, base, root).changed
    assert not run(site, root).changed
    assert not run(site, root, quick=True).changed
    assert remove(NAME, str(root)).left == (f"{ENTRY_ONE}/inductor_cache/x",)
    assert files_of(base) == expected_files()


@needs_root
def test_an_overlay_copies_what_the_read_only_root_lacks(
    site: Path, base: Path, root: Path, mounted: Callable[..., Path]
) -> None:
    mounted("remount,rw", base)
    (base / ENTRY_ONE / "rank_0_0/model").write_bytes(b"FIRST model")
    mounted("remount,ro", base)
    overlay(site, base, root)
    assert not (root / ENTRY_ONE / "rank_0_0/model").is_symlink()
    assert (root / ENTRY_ONE / "rank_0_0/model").read_bytes() == b"first model"
    assert (root / ENTRY_ONE / "rank_1_0/model").is_symlink()
    assert (root / ENTRY_TWO / "rank_0_0/model").is_symlink()
    assert (root / ENTRY_ONE / "rank_1_0/model").read_bytes() == BIG


@needs_root
@pytest.mark.parametrize("damage", ["link gone", "link elsewhere", "base changed", "engine compiled"])
def test_a_damaged_overlay_is_mended(
    site: Path, base: Path, root: Path, damage: str, mounted: Callable[..., Path]
) -> None:
    overlay(site, base, root)
    path = root / ENTRY_ONE / "rank_0_0/model"
    if damage == "base changed":
        mounted("remount,rw", base)
        (base / ENTRY_ONE / "rank_0_0/model").write_bytes(b"FIRST model!")
        mounted("remount,ro", base)
    else:
        path.unlink()
    if damage == "link elsewhere":
        path.symlink_to("/etc/passwd")
    if damage == "engine compiled":
        path.write_bytes(b"compiled again")
    assert run(site, root, quick=True).changed
    assert path.read_bytes() == b"first model"
    assert not path.is_symlink(), "where the link led to may be gone"
    assert not run(site, root, quick=True).changed


def test_an_overlay_needs_another_place_and_a_base(site: Path, root: Path) -> None:
    with pytest.raises(NotFoundError, match="no such cache root"):
        overlay(site, root.parent / "nothing", root)
    run(site, root)
    with pytest.raises(UsageError, match="must be another directory"):
        overlay(site, root, root)
    root.chmod(0o777)
    with pytest.raises(UnsafePlaceError):
        overlay(site, root, root.parent / "over")


def test_a_rollback_in_an_overlay_has_nothing_to_bring_back(site: Path, root: Path, tmp_path: Path) -> None:
    """What an overlay leads to is not its own to keep."""
    run(site, root)
    over = root.parent / "over"
    overlay(site, root, over)
    newer = make_site(tmp_path / "next", contents={"a/b": {"c": b"d"}}, version="2.0.0")
    outcome = run(newer, over)
    assert outcome.previous is None
    assert files_of(root) == expected_files(CONTENTS)


def test_failures_name_the_place_and_what_to_do() -> None:
    for number in (28, 30, 13, 1, 122):
        text = str(files.failure("cannot write to", "/x", OSError(number, os.strerror(number))))
        assert text.startswith("cannot write to /x: ")
        assert "\n" not in text
