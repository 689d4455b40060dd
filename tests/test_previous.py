"""The version before: kept by an upgrade, brought back by a rollback, and never a mixture."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factories import (
    A100,
    CONTENTS,
    ENTRY_ONE,
    ENTRY_TWO,
    H100,
    NAME,
    VERSION,
    Contents,
    expected_files,
    files_of,
    folder_in_memory,
    make_gpu,
    make_host,
    make_site,
    run,
)
from model_cache.errors import DamagedError, MismatchError, NotFoundError
from model_cache.store import files, kept, leftovers, staging, state
from model_cache.store.deploy import HeldError, rollback
from model_cache.store.removal import remove
from model_cache.store.root import Root, swap_name
from model_cache.store.state import State
from model_cache.wheel.names import data_package

PACKAGE = data_package(NAME)
ENTRY_THREE = f"torch_compile_cache/torch_aot_compile/{'3' * 64}"
NEXT: Contents = {
    ENTRY_ONE: {"rank_0_0/model": b"first, next", "rank_1_0/model": b"first, next, one"},
    ENTRY_THREE: {"rank_0_0/model": b"third"},
}
LAST: Contents = {ENTRY_THREE: {"rank_0_0/model": b"third, last"}}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with folder_in_memory(tmp_path) as folder:
        yield folder / "root"


@pytest.fixture
def sites(tmp_path: Path) -> list[Path]:
    """The same wheel in versions 1.0.0, 2.0.0 and 3.0.0."""
    contents = {"1.0.0": CONTENTS, "2.0.0": NEXT, "3.0.0": LAST}
    return [make_site(tmp_path / version, contents=c, version=version) for version, c in contents.items()]


def read_state(root: Path) -> State:
    with Root.open(str(root)) as opened:
        return state.require(opened, NAME)


def kept_blobs(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in (root / ".model-cache/kept").rglob("blobs/*/*")}


def contents_of(contents: Contents) -> set[bytes]:
    return {data for listed in contents.values() for data in listed.values()}


def test_an_upgrade_keeps_one_version_before_and_a_rollback_toggles(sites: list[Path], root: Path) -> None:
    assert run(sites[0], root).previous is None
    assert kept_blobs(root) == set()
    assert run(sites[1], root).previous == VERSION
    assert kept_blobs(root) == contents_of(CONTENTS)
    outcome = rollback(NAME, str(root), make_host())
    assert (outcome.version, outcome.previous) == ("1.0.0", "2.0.0")
    assert files_of(root) == expected_files(CONTENTS)
    assert kept_blobs(root) == contents_of(NEXT)
    assert rollback(NAME, str(root), make_host()).version == "2.0.0"
    assert files_of(root) == expected_files(NEXT)
    # And the third takes the place of the first.
    assert run(sites[2], root).previous == "2.0.0"
    assert kept_blobs(root) == contents_of(NEXT)
    remove(NAME, str(root))
    assert list(root.iterdir()) == []


def test_keeping_costs_no_space(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    inodes = {path.stat().st_ino for path in root.rglob("model")}
    run(sites[1], root)
    assert {path.stat().st_ino for path in root.rglob("blobs/*/*")} <= inodes
    assert all(path.stat().st_nlink == 1 for path in root.rglob("model"))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSPC])
def test_without_hard_links_it_is_copied_and_without_space_not_kept(
    sites: list[Path], root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.link

    def refused(source: str, target: str, **options: Any) -> None:
        if number == errno.ENOSPC and target == "owner":
            real(source, target, **options)
        else:
            raise OSError(number, os.strerror(number))

    run(sites[0], root)
    monkeypatch.setattr(os, "link", refused)
    outcome = run(sites[1], root)
    assert files_of(root) == expected_files(NEXT)
    if number == errno.ENOSPC:
        assert outcome.previous is None
        with pytest.raises(NotFoundError, match=r"no version before 2\.0\.0 is kept"):
            rollback(NAME, str(root), make_host())
    else:
        assert outcome.previous == VERSION
        rollback(NAME, str(root), make_host())
        assert files_of(root) == expected_files(CONTENTS)


def test_the_same_version_again_keeps_what_was_kept(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    run(sites[1], root)
    (root / ENTRY_THREE / "rank_0_0/model").write_bytes(b"x")
    assert run(sites[1], root).previous == VERSION
    assert run(sites[1], root).previous == VERSION


def test_a_downgrade_is_a_switch_like_any_other(sites: list[Path], root: Path) -> None:
    run(sites[1], root)
    assert run(sites[0], root).previous == "2.0.0"
    assert rollback(NAME, str(root), make_host()).version == "2.0.0"


def test_a_rollback_is_judged_like_a_deploy(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    run(sites[1], root)
    before = files_of(root)
    with pytest.raises(MismatchError, match="torch is 2"):
        rollback(NAME, str(root), make_host(torch="2.15.0"))
    for path in root.rglob("blobs/*/*"):
        path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(DamagedError, match="other content"):
        rollback(NAME, str(root), make_host())
    assert files_of(root) == before
    with pytest.raises(NotFoundError, match="is not deployed"):
        rollback("model-cache-x", str(root), make_host())


def test_a_dry_run_of_a_rollback_writes_nothing(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    run(sites[1], root)
    outcome = rollback(NAME, str(root), make_host(), dry_run=True)
    assert (outcome.version, outcome.dry_run, outcome.removed) == ("1.0.0", True, (ENTRY_THREE,))
    assert files_of(root) == expected_files(NEXT)


def test_only_what_this_host_had_comes_back(tmp_path: Path, root: Path) -> None:
    targets = {ENTRY_ONE: "h100-sxm5-80gb", ENTRY_TWO: "a100-sxm4-80gb"}
    site = make_site(tmp_path, targets=(H100, A100), target_of=targets.__getitem__)
    newer = make_site(tmp_path / "next", contents=LAST, version="2.0.0")
    run(site, root, make_host(make_gpu(H100)))
    run(newer, root)
    rollback(NAME, str(root), make_host())
    assert {path.rpartition("/rank")[0] for path in files_of(root)} == {ENTRY_ONE}


def test_what_the_engine_changed_is_not_kept_as_ours(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"compiled again")
    run(sites[1], root)
    rollback(NAME, str(root), make_host())
    assert expected_files({ENTRY_TWO: CONTENTS[ENTRY_TWO]}).items() <= files_of(root).items()
    assert not (root / ENTRY_ONE / "rank_0_0/model").exists()


def test_files_of_the_engine_survive_every_switch(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    (root / ENTRY_ONE / "inductor_cache").mkdir()
    (root / ENTRY_ONE / "inductor_cache/x").write_bytes(b"added")
    for _ in range(2):
        run(sites[1], root)
        rollback(NAME, str(root), make_host())
        assert files_of(root)[f"{ENTRY_ONE}/inductor_cache/x"] == b"added"


def test_an_engine_start_does_not_bring_back_what_was_rolled_back_from(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    run(sites[1], root)
    rollback(NAME, str(root), make_host())
    with pytest.raises(HeldError, match=r"2\.0\.0 was rolled back to 1\.0\.0"):
        run(sites[1], root, hold=True, quick=True)
    assert files_of(root) == expected_files(CONTENTS)
    run(sites[0], root, hold=True)  # the old wheel again: what was held stays held
    with pytest.raises(HeldError):
        run(sites[1], root, hold=True)
    run(sites[1], root)  # by name
    assert files_of(root) == expected_files(NEXT)
    assert read_state(root).held == ""


def test_the_old_version_gives_way_to_the_new_when_space_is_short(
    sites: list[Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sites[0], root)
    run(sites[1], root)
    real = Root.free_bytes
    monkeypatch.setattr(Root, "free_bytes", lambda self: real(self) if not kept_blobs(root) else 1000)
    run(sites[2], root)
    assert files_of(root) == expected_files(LAST)
    assert contents_of(CONTENTS).isdisjoint(kept_blobs(root))


def test_a_swap_that_was_cut_short_gives_the_engine_its_files_back(sites: list[Path], root: Path) -> None:
    """Killed after the old directory was moved aside: what the engine had added there is not ours to delete."""
    run(sites[0], root)
    (root / ENTRY_ONE / "inductor_cache").mkdir()
    (root / ENTRY_ONE / "inductor_cache/x").write_bytes(b"added")
    parent = (root / ENTRY_ONE).parent
    aside = parent / swap_name(Path(ENTRY_ONE).name)
    (root / ENTRY_ONE).rename(aside)
    foreign = parent / swap_name("another wheel's entry")
    foreign.mkdir()
    run(sites[0], root)
    assert files_of(root) == expected_files() | {f"{ENTRY_ONE}/inductor_cache/x": b"added"}
    assert not aside.exists()
    assert foreign.exists(), "only its own wheel knows which files in there are the engine's"


def test_a_file_that_comes_while_an_entry_is_taken_away_stays_and_is_named(
    sites: list[Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sites[0], root)
    real = os.rename

    def engine_is_faster(source: str, target: str, **options: Any) -> None:
        if source == Path(ENTRY_ONE).name:
            (root / ENTRY_ONE / "late").write_bytes(b"added")
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", engine_is_faster)
    assert remove(NAME, str(root)).left == (f"{ENTRY_ONE}/late",)
    assert files_of(root) == {f"{ENTRY_ONE}/late": b"added"}


def test_a_state_that_a_network_disk_shows_late_is_waited_for(
    sites: list[Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sites[0], root)
    real = files.open_regular
    late = [FileNotFoundError(errno.ENOENT, "late")] * 2

    def lagging(directory: int, name: str) -> int:
        if name == f"{NAME}.json" and late:
            raise late.pop()
        return real(directory, name)

    monkeypatch.setattr(files, "open_regular", lagging)
    assert read_state(root).version == VERSION
    assert late == []


def test_an_entry_that_a_network_disk_shows_late_stays_ours(
    sites: list[Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model_cache.store import plan

    run(sites[0], root)
    real = plan.staging.compare
    calls = []

    def lagging(*arguments: Any) -> Any:
        calls.append(arguments)
        return None if len(calls) == 1 else real(*arguments)

    monkeypatch.setattr(plan.staging, "compare", lagging)
    run(sites[0], root)
    assert files_of(root) == expected_files()
    assert all(entry.ours for entry in read_state(root).entries)
    remove(NAME, str(root))
    assert files_of(root) == {}


def test_unfinished_things_below_kept_do_not_pile_up(sites: list[Path], root: Path) -> None:
    run(sites[0], root)
    place = root / kept.folder(NAME)
    (place / f".model-cache-tmp-{leftovers.__name__}").mkdir()
    (place / ("0" * 64)).mkdir()
    os.utime(place / f".model-cache-tmp-{leftovers.__name__}", (1, 1))
    run(sites[0], root)
    assert [path.name for path in place.iterdir()] == [read_state(root).manifest_sha256]
    shutil.rmtree(place)
    run(sites[1], root)  # nothing to keep it by: no rollback, but no error either
    assert read_state(root).previous == ""


@pytest.mark.parametrize("same", [True, False])
def test_a_file_that_the_new_version_does_not_have_goes(tmp_path: Path, root: Path, same: bool) -> None:
    """One rank less under the same key: a rank of the old version beside one of the new would be a mixture."""
    less: Contents = {ENTRY_ONE: {"rank_0_0/model": CONTENTS[ENTRY_ONE]["rank_0_0/model"] if same else b"other"}}
    run(make_site(tmp_path), root)
    (root / ENTRY_ONE / "added").touch()
    outcome = run(make_site(tmp_path / "next", contents=less, version="2.0.0"), root)
    assert files_of(root) == expected_files(less) | {f"{ENTRY_ONE}/added": b""}
    assert outcome.entries[0].action == "restored"
    assert not run(tmp_path / "next/site", root).changed
    rollback(NAME, str(root), make_host())
    assert files_of(root) == expected_files() | {f"{ENTRY_ONE}/added": b""}


def test_an_engine_that_starts_in_between_does_not_keep_the_entry_away(
    sites: list[Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM makes `<entry>/inductor_cache` at its start, perhaps just before the entry is moved into place."""
    real = staging.place

    def engine_is_faster(parent: int, staged: str, name: str) -> bool:
        (root / ENTRY_ONE / "inductor_cache").mkdir(parents=True, exist_ok=True)
        return real(parent, staged, name)

    monkeypatch.setattr(staging, "place", engine_is_faster)
    outcome = run(sites[0], root)
    assert {entry.action for entry in outcome.entries} == {"deployed"}
    assert files_of(root) == expected_files()
    remove(NAME, str(root))
    assert files_of(root) == {}


def test_what_an_engine_still_writes_into_a_directory_that_was_moved_aside_is_not_lost(
    sites: list[Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sites[0], root)
    real = staging._empty
    passes = []

    def engine_is_slow(parent: int, old: int, *arguments: Any) -> None:
        real(parent, old, *arguments)
        passes.append(old)
        if len(passes) < 3:
            descriptor = os.open(f"late{len(passes)}", os.O_CREAT | os.O_WRONLY, dir_fd=old)
            os.close(descriptor)

    monkeypatch.setattr(staging, "_empty", engine_is_slow)
    run(sites[1], root)
    assert {f"{ENTRY_ONE}/late1", f"{ENTRY_ONE}/late2"} <= files_of(root).keys()
