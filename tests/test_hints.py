"""Hints: small files beside the entries. An engine does without them, so none may stand in anybody's way."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from factories import NAME, expected_files, files_of, make_document, make_host, make_site, make_wheel, run, snapshot
from model_cache.errors import DamagedError
from model_cache.store import deploy, state
from model_cache.store.removal import remove
from model_cache.store.root import Root
from model_cache.wheel.manifest import from_dict

PATH = "modelinfos/vllm-x-Model.json"
TEXT = '{\n  "hash": "a", "modelinfo": {}\n}'
NEWER = '{"hash": "b"}'
OTHER = "model-cache-other-h100-sxm5-80gb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def site(folder: Path, hints: dict[str, str], **options: Any) -> Path:
    return make_site(folder, changes={"hints": hints}, **options)


def noted(root: Path) -> list[str]:
    with Root.open(str(root)) as opened:
        return [file.path for file in state.require(opened, NAME).hints]


def test_a_hint_is_written_word_for_word_and_goes_with_the_wheel(tmp_path: Path, root: Path) -> None:
    root.mkdir()
    before = snapshot(root)
    run(site(tmp_path, {PATH: TEXT}), root)
    assert files_of(root) == {**expected_files(), PATH: TEXT.encode()}
    assert stat.S_IMODE((root / PATH).stat().st_mode) == 0o644
    remove(NAME, str(root))
    assert snapshot(root) == before


def test_a_second_deploy_brings_a_lost_hint_back_and_changes_nothing_else(tmp_path: Path, root: Path) -> None:
    place = site(tmp_path, {PATH: TEXT})
    run(place, root)
    (root / PATH).unlink()
    assert not run(place, root).changed
    assert (root / PATH).read_text() == TEXT


@pytest.mark.parametrize("theirs", ["{}", TEXT])
def test_a_file_of_the_engine_stays_also_when_the_wheel_goes(tmp_path: Path, root: Path, theirs: str) -> None:
    (root / "modelinfos").mkdir(parents=True)
    (root / PATH).write_text(theirs)
    run(site(tmp_path, {PATH: TEXT}), root)
    assert noted(root) == []
    remove(NAME, str(root))
    assert (root / PATH).read_text() == theirs


def test_what_the_engine_has_written_over_a_hint_stays(tmp_path: Path, root: Path) -> None:
    place = site(tmp_path, {PATH: TEXT})
    run(place, root)
    (root / PATH).write_text(NEWER)
    run(place, root)
    remove(NAME, str(root))
    assert (root / PATH).read_text() == NEWER


def test_an_upgrade_replaces_its_hints_takes_away_the_old_ones_and_a_rollback_brings_them_back(
    tmp_path: Path, root: Path
) -> None:
    gone = "modelinfos/old.json"
    run(site(tmp_path / "1", {PATH: TEXT, gone: "{}"}), root)
    run(site(tmp_path / "2", {PATH: NEWER}, version="2.0.0"), root)
    assert (root / PATH).read_text() == NEWER
    assert not (root / gone).exists()
    deploy.rollback(NAME, str(root), make_host())
    assert (root / PATH).read_text() == TEXT
    assert (root / gone).exists()


def test_two_wheels_of_one_class_share_it_until_the_last_goes(tmp_path: Path, root: Path) -> None:
    run(site(tmp_path / "1", {PATH: TEXT}), root)
    run(site(tmp_path / "2", {PATH: TEXT}, name=OTHER, contents={f"a/{'3' * 64}": {"m": b"x"}}), root, name=OTHER)
    remove(NAME, str(root))
    assert (root / PATH).read_text() == TEXT
    remove(OTHER, str(root))
    assert not root.exists() or list(root.iterdir()) == []


@pytest.mark.parametrize("obstacle", ["link", "file", "open to all", "link in place", "directory in place"])
def test_where_no_hint_can_be_written_the_entries_are_deployed_all_the_same(
    tmp_path: Path, root: Path, obstacle: str
) -> None:
    folder = root / "modelinfos"
    outside = tmp_path / "outside"
    outside.mkdir()
    root.mkdir()
    if obstacle == "link":
        folder.symlink_to(outside)
    elif obstacle == "file":
        folder.write_text("x")
    else:
        folder.mkdir()
        if obstacle == "open to all":
            folder.chmod(0o777)
        elif obstacle == "link in place":
            (root / PATH).symlink_to(outside / "x.json")
        else:
            (root / PATH).mkdir()
    run(site(tmp_path, {PATH: TEXT}), root)
    assert os.listdir(outside) == []
    assert PATH not in files_of(root)
    assert expected_files().items() <= files_of(root).items()
    remove(NAME, str(root))


def test_a_dry_run_writes_none(tmp_path: Path, root: Path) -> None:
    run(site(tmp_path, {PATH: TEXT}), root, dry_run=True)
    assert not root.exists()


def test_a_kill_before_the_rename_leaves_nothing_unfinished(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = site(tmp_path, {PATH: TEXT})
    real = os.rename

    class Killed(BaseException):
        pass

    def rename(old: str, new: str, **options: Any) -> None:
        if new == Path(PATH).name:
            raise Killed
        real(old, new, **options)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(Killed):
        run(place, root)
    monkeypatch.undo()
    run(place, root)
    assert (root / PATH).read_text() == TEXT
    assert list(root.rglob(".model-cache-tmp-*")) == []


@pytest.mark.parametrize(
    ("hints", "said"),
    [
        ({"modelinfos/x.json": "[1]"}, "must hold an object"),
        ({"modelinfos/x.json": "{"}, "is not valid JSON"),
        ({"torch_compile_cache/x.json": "{}"}, "lies in a directory of entries"),
        ({"Torch_Compile_Cache/x.json": "{}"}, "lies in a directory of entries"),
        ({"modelinfos/x.json": "{}", "modelinfos/X.json": "{}"}, "twice"),
    ],
)
def test_what_is_no_hint_is_refused(hints: dict[str, str], said: str) -> None:
    with pytest.raises(DamagedError) as refused:
        from_dict(make_document(changes={"hints": hints}))
    assert any(said in problem and "hints" in problem for problem in refused.value.problems)


def test_a_wheel_with_a_hostile_hint_leaves_no_trace(tmp_path: Path, root: Path) -> None:
    make_wheel(tmp_path / "dist", changes={"hints": {"../x.json": "{}"}})
    with pytest.raises(DamagedError):
        run(site(tmp_path, {"../x.json": "{}"}), root)
    assert not root.exists()
    assert not (tmp_path / "x.json").exists()
