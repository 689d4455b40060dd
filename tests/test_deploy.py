from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from factories import (
    A100,
    BIG,
    CONTENTS,
    ENTRY_ONE,
    ENTRY_TWO,
    H100,
    NAME,
    Contents,
    expected_files,
    files_of,
    folder_in_memory,
    make_gpu,
    make_host,
    make_site,
    run,
    sha,
    snapshot,
)
from model_cache.errors import DamagedError, MismatchError, ModelCacheError, NotFoundError, UsageError
from model_cache.store import deploy as deploying
from model_cache.store import files, staging, state
from model_cache.store.deploy import Outcome
from model_cache.store.files import LinkError
from model_cache.store.location import cache_root
from model_cache.store.removal import remove
from model_cache.store.root import Root, temporary_name
from model_cache.wheel import parallel
from model_cache.wheel.names import data_package
from model_cache.wheel.verify import Deadline, DeadlineError, blob_path

PACKAGE = data_package(NAME)


def actions(outcome: Outcome) -> dict[str, str]:
    return {entry.directory: entry.action for entry in outcome.entries}


def leftovers(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob(".model-cache-tmp-*")]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with folder_in_memory(tmp_path) as folder:
        yield folder / "root"


def test_on_a_disk(site: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    run(site, root)
    (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"x")
    (root / ENTRY_ONE / "rank_1_0/model").write_bytes(b"x")
    assert actions(run(site, root)) == {ENTRY_ONE: "restored", ENTRY_TWO: "unchanged"}
    assert files_of(root) == expected_files()
    remove(NAME, str(root))
    assert list(root.iterdir()) == []


# What a deploy does


def test_all_files_are_put_in_place(site: Path, root: Path) -> None:
    outcome = run(site, root)
    assert files_of(root) == expected_files()
    assert actions(outcome) == {ENTRY_ONE: "deployed", ENTRY_TWO: "deployed"}
    assert outcome.targets == ("h100-sxm5-80gb",)
    assert outcome.bytes_written == sum(map(len, expected_files().values()))
    assert leftovers(root) == []


def test_files_are_copies_not_links(site: Path, root: Path) -> None:
    run(site, root)
    for path in root.rglob("model"):
        assert path.stat().st_nlink == 1
        assert not path.is_symlink()


@pytest.mark.parametrize("umask", [0o077, 0o000, 0o777])
def test_modes_do_not_depend_on_the_umask(site: Path, root: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        run(site, root)
    finally:
        os.umask(old)
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o755 if path.is_dir() else 0o644), path


def test_a_file_that_must_be_executable_is(tmp_path: Path, root: Path) -> None:
    site = make_site(tmp_path, changes={"entries.0.files.0.mode": "0755"})
    run(site, root)
    assert stat.S_IMODE((root / ENTRY_ONE / "rank_0_0/model").stat().st_mode) == 0o755


def test_a_second_deploy_does_nothing(site: Path, root: Path) -> None:
    run(site, root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    outcome = run(site, root)
    assert set(actions(outcome).values()) == {"unchanged"}
    assert not outcome.changed
    assert outcome.bytes_written == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before


def test_only_the_entries_of_targets_that_fit_are_deployed(tmp_path: Path, root: Path) -> None:
    names = {ENTRY_ONE: "h100-sxm5-80gb", ENTRY_TWO: "a100-sxm4-80gb"}
    site = make_site(tmp_path, targets=(H100, A100), target_of=names.__getitem__)
    assert run(site, root, make_host(make_gpu(A100))).targets == ("a100-sxm4-80gb",)
    assert {path.rpartition("/rank")[0] for path in files_of(root)} == {ENTRY_TWO}
    # Another host that shares the root adds its own and takes nothing away.
    outcome = run(site, root, make_host(make_gpu(H100)))
    assert outcome.targets == ("h100-sxm5-80gb", "a100-sxm4-80gb")
    assert actions(outcome) == {ENTRY_ONE: "deployed", ENTRY_TWO: "unchanged"}
    assert not run(site, root, make_host(make_gpu(A100))).changed
    assert files_of(root) == expected_files()


def test_a_dry_run_decides_and_writes_nothing(site: Path, root: Path) -> None:
    assert set(actions(run(site, root, dry_run=True)).values()) == {"deployed"}
    assert not root.exists()
    run(site, root)
    (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"x")
    before = snapshot(root)
    outcome = run(site, root, dry_run=True)
    assert outcome.dry_run
    assert actions(outcome) == {ENTRY_ONE: "restored", ENTRY_TWO: "unchanged"}
    assert snapshot(root) == before


def test_a_quick_deploy_trusts_sizes_and_times(site: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(site, root)
    monkeypatch.setattr(deploying, "verify", None)
    outcome = run(site, root, quick=True)
    assert set(actions(outcome).values()) == {"unchanged"}
    path = root / ENTRY_ONE / "rank_0_0/model"
    os.utime(path, ns=(1, 1))
    monkeypatch.undo()
    run(site, root, quick=True)  # looks closer, and notes the new time
    monkeypatch.setattr(deploying, "verify", None)
    assert not run(site, root, quick=True).changed


# What a deploy refuses


@pytest.mark.parametrize(
    "changes",
    [
        {"python": "3.11.8"},
        {"engine_version": "0.32.0"},
        {"torch": "2.13.0+cu130"},
        {"triton": None},
        {"assumed": "b200"},
    ],
)
def test_a_wheel_that_does_not_fit_leaves_no_trace(site: Path, root: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(MismatchError) as caught:
        run(site, root, make_host(**changes))
    assert caught.value.exit_code == 4
    assert not root.exists()


@pytest.mark.parametrize("gpu", [{"device_name": "NVIDIA H200"}, {"compute_capability": "8.0"}, {"sm_count": 114}])
def test_another_gpu_is_refused_with_both_values(site: Path, root: Path, gpu: dict[str, Any]) -> None:
    with pytest.raises(MismatchError) as caught:
        run(site, root, make_host(make_gpu(**gpu)))
    (field, value), text = next(iter(gpu.items())), str(caught.value)
    assert field in text
    assert str(value) in text
    assert str(H100[field]) in text
    assert not root.exists()


@pytest.mark.parametrize("blob", [data for content in CONTENTS.values() for data in content.values()][:3], ids=len)
def test_a_damaged_wheel_leaves_no_trace(site: Path, root: Path, blob: bytes) -> None:
    path = site / PACKAGE / blob_path(sha(blob))
    path.write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    with pytest.raises(DamagedError, match="other content"):
        run(site, root)
    assert not root.exists()


def test_an_unlisted_file_leaves_no_trace(site: Path, root: Path) -> None:
    (site / PACKAGE / "x.py").touch()
    with pytest.raises(DamagedError, match=r"x\.py is not listed"):
        run(site, root)
    assert not root.exists()


def test_a_payload_that_changes_after_it_was_verified_is_caught(
    site: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = deploying.verify

    def then_changed(*arguments: Any, **options: Any) -> Any:
        verified = real(*arguments, **options)
        (site / PACKAGE / blob_path(sha(BIG))).write_bytes(bytes(len(BIG)))
        return verified

    monkeypatch.setattr(deploying, "verify", then_changed)
    with pytest.raises(DamagedError, match="changed while it was copied"):
        run(site, root)
    assert snapshot(root) == {}


def test_what_the_disk_gives_back_wrong_does_not_stay(site: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = staging.place

    def then_rotten(parent: int, staged: str, name: str) -> bool:
        placed = real(parent, staged, name)
        if ENTRY_ONE.endswith(name):
            (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"FIRST model")
        return placed

    monkeypatch.setattr(staging, "place", then_rotten)
    with pytest.raises(DamagedError, match="the disk may be failing"):
        run(site, root)
    assert not (root / ENTRY_ONE).exists()
    monkeypatch.undo()
    run(site, root)
    assert files_of(root) == expected_files()


# What is there already


def test_what_others_have_put_there_is_left_alone(site: Path, root: Path) -> None:
    for content in (b"compiled by the engine", b"first model"):
        path = root / ENTRY_ONE / "rank_0_0/model"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / ENTRY_ONE / "rank_1_0").mkdir()
    (root / ENTRY_ONE / "rank_1_0/model").write_bytes(b"other")
    before = files_of(root)
    outcome = run(site, root)
    assert actions(outcome) == {ENTRY_ONE: "kept", ENTRY_TWO: "deployed"}
    assert outcome.entries[0].note == "was already there with other content"
    assert before.items() <= files_of(root).items()
    assert not run(site, root).changed
    remove(NAME, str(root))
    assert files_of(root) == before


def test_the_same_content_put_there_by_others_is_not_ours_either(site: Path, root: Path) -> None:
    run(site, root)
    shutil.rmtree(root / ".model-cache")
    outcome = run(site, root)
    assert set(actions(outcome).values()) == {"kept"}
    assert outcome.entries[0].note == "was already there with the same content"
    assert remove(NAME, str(root)).kept == (ENTRY_ONE, ENTRY_TWO)
    assert files_of(root) == expected_files()


def test_a_directory_of_the_engine_without_our_files_is_filled(site: Path, root: Path) -> None:
    added = root / ENTRY_ONE / "inductor_cache/triton/x.json"
    added.parent.mkdir(parents=True)
    added.write_bytes(b"{}")
    assert set(actions(run(site, root)).values()) == {"deployed"}
    assert files_of(root) == expected_files() | {f"{ENTRY_ONE}/inductor_cache/triton/x.json": b"{}"}
    assert remove(NAME, str(root)).left == (f"{ENTRY_ONE}/inductor_cache/triton/x.json",)


@pytest.mark.parametrize("swap", [True, False], ids=["exchange", "without exchange"])
@pytest.mark.parametrize("damage", ["changed", "missing", "cut", "link", "all", "directory"])
def test_damage_is_mended_and_what_the_engine_added_stays(
    site: Path, root: Path, damage: str, swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swap:
        monkeypatch.setattr(files, "exchange", lambda *_: False)
    run(site, root)
    added = root / ENTRY_ONE / "inductor_cache/x"
    added.parent.mkdir()
    added.write_bytes(b"added")
    (root / ENTRY_ONE / "rank_0_0/beside").write_bytes(b"beside")
    path = root / ENTRY_ONE / "rank_0_0/model"
    if damage == "changed":
        path.write_bytes(b"FIRST model")
    elif damage == "cut":
        path.write_bytes(b"")
    else:
        path.unlink()
    if damage == "link":
        path.symlink_to("/etc/passwd")
    if damage == "directory":
        path.mkdir()
    if damage == "all":
        (root / ENTRY_ONE / "rank_1_0/model").write_bytes(b"x")
    outcome = run(site, root)
    assert actions(outcome) == {ENTRY_ONE: "restored", ENTRY_TWO: "unchanged"}
    extra = {f"{ENTRY_ONE}/inductor_cache/x": b"added", f"{ENTRY_ONE}/rank_0_0/beside": b"beside"}
    assert files_of(root) == expected_files() | extra
    assert leftovers(root) == []
    assert not run(site, root).changed


def test_mending_one_file_leaves_the_directory_in_place(site: Path, root: Path) -> None:
    run(site, root)
    before = (root / ENTRY_ONE).stat().st_ino
    (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"x")
    run(site, root)
    assert (root / ENTRY_ONE).stat().st_ino == before


def test_a_deleted_entry_comes_back(site: Path, root: Path) -> None:
    run(site, root)
    shutil.rmtree(root / ENTRY_ONE)
    assert actions(run(site, root)) == {ENTRY_ONE: "deployed", ENTRY_TWO: "unchanged"}
    assert files_of(root) == expected_files()


# Another version

NEXT: Contents = {
    ENTRY_ONE: {"rank_0_0/model": b"first model, next version", "rank_1_0/model": BIG + b"."},
    f"torch_compile_cache/torch_aot_compile/{'3' * 64}": {"rank_0_0/model": b"third"},
}


def test_an_upgrade_replaces_and_a_downgrade_brings_back(site: Path, root: Path, tmp_path: Path) -> None:
    newer = make_site(tmp_path / "next", contents=NEXT, version="2.0.0")
    run(site, root)
    (root / ENTRY_ONE / "inductor_cache").mkdir()
    (root / ENTRY_ONE / "inductor_cache/x").write_bytes(b"added")
    (root / ENTRY_TWO / "added").write_bytes(b"added")
    outcome = run(newer, root)
    assert actions(outcome)[ENTRY_ONE] == "restored"
    assert outcome.removed == (ENTRY_TWO,)
    assert outcome.left == (f"{ENTRY_TWO}/added",)
    added = {f"{ENTRY_ONE}/inductor_cache/x": b"added", f"{ENTRY_TWO}/added": b"added"}
    assert files_of(root) == expected_files(NEXT) | added
    run(site, root)
    assert files_of(root) == expected_files() | added
    assert len(list((root / ".model-cache").glob("*.json"))) == 1


def test_two_wheels_share_a_root_and_a_directory_belongs_to_the_first(site: Path, root: Path, tmp_path: Path) -> None:
    other = make_site(tmp_path / "other", name="model-cache-other-h100-sxm5-80gb")
    run(site, root)
    outcome = run(other, root, name="model-cache-other-h100-sxm5-80gb")
    assert set(actions(outcome).values()) == {"kept"}
    assert remove("model-cache-other-h100-sxm5-80gb", str(root)).removed == ()
    assert files_of(root) == expected_files()


# Remove


def test_remove_takes_away_exactly_what_deploy_put_there(site: Path, root: Path) -> None:
    (root / "torch_compile_cache").mkdir(parents=True)
    (root / "modelinfos").mkdir()
    (root / "modelinfos/x.json").write_text("{}")
    before = snapshot(root)
    run(site, root)
    removal = remove(NAME, str(root))
    assert snapshot(root) == before
    assert list(root.glob(".*")) == []
    assert (removal.removed, removal.left, removal.kept) == ((ENTRY_ONE, ENTRY_TWO), (), ())


def test_remove_names_and_leaves_what_the_engine_added_or_changed(site: Path, root: Path) -> None:
    run(site, root)
    (root / ENTRY_ONE / "inductor_cache/empty").mkdir(parents=True)
    (root / ENTRY_ONE / "inductor_cache/x").write_bytes(b"added")
    (root / ENTRY_ONE / "link").symlink_to("/etc/passwd")
    (root / ENTRY_TWO / "rank_0_0/model").write_bytes(b"compiled again")
    removal = remove(NAME, str(root))
    assert set(removal.left) == {
        f"{ENTRY_ONE}/inductor_cache/empty/",
        f"{ENTRY_ONE}/inductor_cache/x",
        f"{ENTRY_ONE}/link",
        f"{ENTRY_TWO}/rank_0_0/model",
    }
    assert files_of(root) == {
        f"{ENTRY_ONE}/inductor_cache/x": b"added",
        f"{ENTRY_TWO}/rank_0_0/model": b"compiled again",
    }
    assert not (root / ENTRY_ONE / "rank_0_0").exists()
    # And a deploy after it fills the first again, but leaves the changed one alone.
    assert actions(run(site, root)) == {ENTRY_ONE: "deployed", ENTRY_TWO: "kept"}


def test_directories_that_several_wheels_share_go_with_the_last(site: Path, root: Path, tmp_path: Path) -> None:
    contents = {f"torch_compile_cache/torch_aot_compile/{'9' * 64}": {"m": b"x"}}
    name = "model-cache-other-h100-sxm5-80gb"
    other = make_site(tmp_path / "other", contents=contents, name=name)
    run(site, root)
    run(other, root, name=name)
    remove(NAME, str(root))
    assert files_of(root) == expected_files(contents)
    remove(name, str(root))
    assert list(root.iterdir()) == []


def test_remove_of_what_is_not_deployed_is_not_found(site: Path, root: Path) -> None:
    with pytest.raises(NotFoundError, match="no such cache root"):
        remove(NAME, str(root))
    run(site, root)
    with pytest.raises(NotFoundError, match=f"deployed there: {NAME}"):
        remove("model-cache-x", str(root))


# The place


def test_a_link_below_the_root_is_not_followed(site: Path, root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for number, place in enumerate(("torch_compile_cache", ".model-cache", ENTRY_ONE)):
        here = root / str(number)
        link = here / place
        link.parent.mkdir(parents=True)
        link.symlink_to(elsewhere)
        with pytest.raises(LinkError, match="is a link or no directory"):
            run(site, here)
        assert list(elsewhere.iterdir()) == []
        assert files_of(here) == {}


def test_the_root_itself_may_be_a_link(site: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    root.symlink_to(tmp_path / "real")
    run(site, root)
    assert files_of(tmp_path / "real") == expected_files()


def test_a_file_where_a_directory_must_be_is_one_clear_line(site: Path, root: Path) -> None:
    root.mkdir()
    (root / "torch_compile_cache").touch()
    with pytest.raises(ModelCacheError, match="torch_compile_cache below the cache root is a link or no directory"):
        run(site, root)
    root_file = root / "torch_compile_cache"
    for place in (root_file, root_file / "below"):
        with pytest.raises(UsageError, match="a directory must be where"):
            run(site, place)
        with pytest.raises(UsageError, match="a directory must be where"):
            remove(NAME, str(place))


def test_too_little_space_is_told_before_anything_is_written(
    site: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Root, "free_bytes", lambda self: 1000)
    with pytest.raises(ModelCacheError, match=r"not enough space in .*: 8\.2 kB are to be written"):
        run(site, root)
    assert snapshot(root) == {}


STEPS = {} if os.environ.get("EXHAUSTIVE") else {"open": 23, "stat": 7, "fsync": 2, "fchmod": 2, "kill": 7}
"""Every n-th call is enough in between; `make torture` takes every one."""


class Failing:
    """Stands for a function of `os` that fails at its n-th call."""

    def __init__(self, real: Any, fail_at: int, number: int) -> None:
        self.real, self.left, self.number = real, fail_at, number

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.number, os.strerror(self.number))
        return self.real(*arguments, **options)


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "mkdir", "fchmod", "unlink", "rmdir", "open", "stat"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_any_failing_system_call_is_one_clear_line_and_the_next_deploy_heals(
    site: Path, root: Path, tmp_path: Path, call: str, number: int
) -> None:
    """The first call fails, then the second … until a deploy does not reach the n-th any more."""
    newer = make_site(tmp_path / "next", contents=NEXT, version="2.0.0")
    for fail_at in range(1, 900, STEPS.get(call, 1)):
        shutil.rmtree(root, ignore_errors=True)
        run(site, root)
        failing = Failing(getattr(os, call), fail_at, number)
        failed = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, call, failing)
            try:
                run(newer, root)
            except ModelCacheError as error:
                failed = error
        assert_no_entry_is_torn(root, CONTENTS, NEXT)
        if failed:
            assert "cannot " in failed.message
            assert "\n" not in str(failed)
        elif failing.left > 0:
            assert fail_at > 1, "the deploy does not call it at all"
            return  # the deploy has fewer calls than that
        run(newer, root)
        assert files_of(root) == expected_files(NEXT)
        assert leftovers(root) == []
    pytest.fail("never reached the end")


def assert_no_entry_is_torn(root: Path, *versions: Contents) -> None:
    """Every entry is absent or exactly one version of it."""
    found = files_of(root)
    for directory in {directory for contents in versions for directory in contents}:
        here = {path.removeprefix(f"{directory}/"): data for path, data in found.items() if path.startswith(directory)}
        assert here in [{}, *(dict(contents[directory]) for contents in versions if directory in contents)], here


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
def test_a_really_full_disk(site: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(root)], check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        big = make_site(tmp_path / "big", contents={"a/b": {"f": os.urandom(50_000), "g": os.urandom(50_000)}})
        with pytest.raises(ModelCacheError, match="not enough space"):
            run(big, root)
        monkeypatch.setattr(Root, "free_bytes", lambda self: 10**9)
        with pytest.raises(ModelCacheError, match="the disk is full"):
            run(big, root)
        assert snapshot(root) == {}
        assert leftovers(root) == []
        run(site, root)
        assert files_of(root) == expected_files()
    finally:
        subprocess.run(["umount", str(root)], check=True)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"VLLM_CACHE_ROOT": "/a/b"}, "/a/b"),
        ({"VLLM_CACHE_ROOT": "~/x", "XDG_CACHE_HOME": "/xdg"}, "/home/u/x"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/vllm"),
        ({}, "/home/u/.cache/vllm"),
    ],
)
def test_the_cache_root_is_the_engines(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert cache_root(None, environment) == expected
    assert cache_root("/given", environment) == "/given"
    monkeypatch.chdir("/tmp")
    assert cache_root("rel", environment) == "/tmp/rel"


def test_a_home_that_is_the_root_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    with pytest.raises(UsageError, match="set VLLM_CACHE_ROOT or give --root"):
        cache_root(None, {})
    assert cache_root(None, {"VLLM_CACHE_ROOT": "/data"}) == "/data"
    with pytest.raises(UsageError, match="empty path"):
        cache_root("", {})


def test_a_damaged_state_is_told_with_what_to_do(site: Path, root: Path) -> None:
    run(site, root)
    path = root / ".model-cache" / f"{NAME}.json"
    good = json.loads(path.read_text())
    for text in ("", "{", "[]", json.dumps(good | {"phase": "x"}), json.dumps(good | {"state_version": 2})):
        path.write_text(text)
        with pytest.raises(DamagedError, match="state of"):
            run(site, root)
    evil = json.loads(json.dumps(good))
    evil["entries"][0]["directory"] = "../../etc"
    path.write_text(json.dumps(evil))
    with pytest.raises(DamagedError, match="delete"):
        remove(NAME, str(root))


# Several at once, and killed


def deploy_in_child(site: str, root: str, queue: Any) -> None:
    try:
        queue.put(sorted(set(actions(run(Path(site), Path(root))).values())))
    except BaseException as error:
        queue.put(repr(error))


def start(count: int, site: Path, root: Path) -> list[Any]:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=deploy_in_child, args=(str(site), str(root), queue)) for _ in range(count)]
    for child in children:
        child.start()
    results = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
    return results


@pytest.mark.parametrize("locks", [True, False], ids=["flock", "without flock"])
def test_eight_deployers_at_once(site: Path, root: Path, monkeypatch: pytest.MonkeyPatch, locks: bool) -> None:
    if not locks:

        def missing(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr(fcntl, "flock", missing)
    results = start(8, site, root)
    assert files_of(root) == expected_files()
    assert leftovers(root) == []
    if locks:
        assert sorted(results) == [["deployed"], *[["unchanged"]] * 7]
    else:
        assert all(isinstance(result, list) and set(result) <= {"deployed", "unchanged", "kept"} for result in results)
    run(site, root)
    assert files_of(root) == expected_files()


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_no_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last remove deletes our directory, with the lock file that others may have open to wait for."""
    real = fcntl.flock
    calls = []

    def deleted_before(descriptor: int, operation: int) -> None:
        if not calls:
            shutil.rmtree(root / ".model-cache")
        calls.append(descriptor)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", deleted_before)
    with Root.open(str(root), create=True) as one, one.lock(Deadline(5)):
        assert len(calls) >= 2
        with Root.open(str(root)) as other, pytest.raises(DeadlineError), other.lock(Deadline(0.1)):
            pass


def test_waiting_for_a_lock_ends_with_the_deadline(site: Path, root: Path) -> None:
    run(site, root)
    (root / ENTRY_ONE / "rank_0_0/model").unlink()
    with (
        Root.open(str(root)) as held,
        held.lock(Deadline()),
        pytest.raises(DeadlineError, match=r"gave up after 0\.5 s"),
    ):
        run(site, root, deadline=Deadline(0.5))
    run(site, root, deadline=Deadline(30))
    assert files_of(root) == expected_files()


def deploy_and_remove_forever(sites: list[Path], root: Path) -> NoReturn:
    try:
        while True:
            for site in sites:
                run(site, root)
            remove(NAME, str(root))
    finally:
        os._exit(1)  # the tests' own process goes on elsewhere


def test_killed_at_any_time_no_entry_is_torn_and_the_next_deploy_heals(site: Path, root: Path, tmp_path: Path) -> None:
    newer = make_site(tmp_path / "next", contents=NEXT, version="2.0.0")
    generator = random.Random(1)
    phases = set()
    for attempt in range(12):
        pid = os.fork()
        if pid == 0:
            deploy_and_remove_forever([site, newer], root)
        time.sleep(generator.uniform(0.005, 0.06))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        if root.exists():
            assert_no_entry_is_torn(root, CONTENTS, NEXT)
            with Root.open(str(root)) as opened:
                found = state.load(opened, NAME)
            phases.add(found.phase if found else "none")
        wanted, contents = (site, CONTENTS) if attempt % 2 else (newer, NEXT)
        run(wanted, root)
        assert files_of(root) == expected_files(contents)
        assert leftovers(root) == []
        assert not run(wanted, root).changed
    remove(NAME, str(root))
    assert list(root.iterdir()) == []
    assert len(phases) > 1, "the kills have all come at the same point"


def test_killed_before_every_system_call_that_changes_something(site: Path, root: Path, tmp_path: Path) -> None:
    """Exhaustive where the test above is random: the process ends at its n-th changing call, for every n."""
    newer = make_site(tmp_path / "next", contents=NEXT, version="2.0.0")
    for end_at in range(1, 500, STEPS.get("kill", 1)):
        shutil.rmtree(root, ignore_errors=True)
        run(site, root)
        pid = os.fork()
        if pid == 0:
            try:
                end_this_process_at_call(end_at)
                run(newer, root)
                remove(NAME, str(root))
                os._exit(0)
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            assert end_at > 40
            return
        assert code == 9
        assert_no_entry_is_torn(root, CONTENTS, NEXT)
        run(newer, root)
        assert files_of(root) == expected_files(NEXT)
        assert leftovers(root) == []
        remove(NAME, str(root))
        assert files_of(root) == {}
        assert {path.name for path in root.iterdir()} <= {"torch_compile_cache"}
    pytest.fail("never reached the end")


def end_this_process_at_call(number: int) -> None:
    """Let the n-th changing system call be the end, without any cleaning up, as a kill is."""
    left = number

    def wrapped(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(9)
            return real(*arguments, **options)

        return call

    for name in ("write", "fsync", "rename", "mkdir", "unlink", "rmdir", "fchmod"):
        setattr(os, name, wrapped(getattr(os, name)))


def test_what_the_engine_compiled_after_a_killed_deploy_is_the_engines(site: Path, root: Path) -> None:
    """Killed between intent and first rename; then an engine starts cold and saves into the directory we wanted."""

    def killed(*_: Any) -> NoReturn:
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "place", killed)
        with pytest.raises(SystemExit):
            run(site, root)
    with Root.open(str(root)) as opened:
        found = state.load(opened, NAME)
        assert found is not None
        assert found.phase == "deploying"
    path = root / ENTRY_ONE / "rank_0_0/model"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"compiled by the engine")
    assert actions(run(site, root)) == {ENTRY_ONE: "kept", ENTRY_TWO: "deployed"}
    assert path.read_bytes() == b"compiled by the engine"


def test_leftovers_of_another_system_are_deleted_when_they_are_old(site: Path, root: Path) -> None:
    run(site, root)
    parent = (root / ENTRY_ONE).parent
    foreign = parent / ".model-cache-tmp-000000000000-1-abc"
    foreign.mkdir()
    (foreign / "x").touch()
    mine = parent / temporary_name()
    mine.mkdir()
    run(site, root)
    assert foreign.exists()
    assert not mine.exists()
    os.utime(foreign, (1, 1))
    run(site, root)
    assert not foreign.exists()


@pytest.mark.parametrize("asked", [True, False])
def test_many_files_are_flushed_at_once_where_that_can_be_asked_for(
    tmp_path: Path, root: Path, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {f"a/{number:064x}": {"rank_0_0/model": b"%d" % number} for number in range(40)}
    synced = []
    real, flush = os.fsync, files.sync_file_system
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor)))
    monkeypatch.setattr(files, "sync_file_system", lambda descriptor: asked and flush(descriptor))
    run(make_site(tmp_path, contents=contents), root)
    assert files_of(root) == expected_files(contents)
    # Otherwise each file, its directory and the entry's; here only the directories in which something was renamed.
    assert (len(synced) < 120) is asked


def test_several_cores_give_the_same_result_and_the_same_errors(
    site: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "LEAST_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    run(site, root)
    assert files_of(root) == expected_files()
    (root / ENTRY_ONE / "rank_1_0/model").unlink()
    assert actions(run(site, root)) == {ENTRY_ONE: "restored", ENTRY_TWO: "unchanged"}
    for data in (b"first model", BIG):
        (site / PACKAGE / blob_path(sha(data))).write_bytes(b"x" * len(data))
    with pytest.raises(DamagedError) as caught:
        run(site, root)
    assert len(caught.value.problems) == 2
    with pytest.raises(DeadlineError):
        run(site, root, deadline=Deadline(0))
