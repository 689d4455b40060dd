"""Triton's group files: written by a deploy for the place where the kernels are, and gone with them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from factories import ENTRY_ONE, NAME, expected_files, files_of, install, make_document, make_host, make_wheel, run
from factories import snapshot as snapshot_of
from hatch_model_cache.compile.engines import vllm_warmup
from model_cache.errors import DamagedError
from model_cache.store import deploy, groups, state
from model_cache.store.plan import Adopted
from model_cache.store.removal import remove
from model_cache.store.root import Root
from model_cache.wheel.manifest import from_dict

KERNEL = "inductor_cache/triton/0/ABC/_some_kernel"
OTHER = "inductor_cache/triton/0/DEF/_other_kernel"
GROUP = f"{ENTRY_ONE}/inductor_cache/triton/0/ABC/__grp___some_kernel.json"
OTHER_GROUP = f"{ENTRY_ONE}/inductor_cache/triton/0/DEF/__grp___other_kernel.json"


def contents(*kernels: str) -> dict[str, dict[str, bytes]]:
    files = {"rank_0_0/model": b"first model", "rank_1_0/model": b"second model"}
    for kernel in kernels:
        files |= {f"{kernel}.cubin": f"cubin of {kernel}".encode(), f"{kernel}.json": b'{"shared": 0}'}
    return {ENTRY_ONE: files}


def site(folder: Path, *kernels: str, **options: Any) -> Path:
    """A wheel with these kernels of the engine, installed."""
    held = contents(*kernels)
    document = make_document(held)
    changes = {
        f"entries.0.files.{i}.kind": groups.KIND
        for i, file in enumerate(document["entries"][0]["files"])
        if file["path"].startswith("inductor_cache/")
    }
    return install(make_wheel(folder / "dist", contents=held, changes=changes, **options), folder / "site")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def children(root: Path, group: str = GROUP) -> dict[str, str]:
    """What Triton reads of a kernel (triton 3.8.0, FileCacheManager.get_group): None of it, if a path leads nowhere."""
    found: dict[str, str] = json.loads((root / group).read_text())["child_paths"]
    assert all(Path(path).exists() for path in found.values()), found
    return found


def noted(root: Path) -> list[str]:
    with Root.open(str(root)) as opened:
        return [file.path for file in state.require(opened, NAME).hints]


def test_both_sides_mean_the_same_files() -> None:
    assert vllm_warmup.KIND == groups.KIND


def test_a_group_leads_to_its_kernels_files_where_they_are(tmp_path: Path, root: Path) -> None:
    run(site(tmp_path, KERNEL, OTHER), root)
    place = root / ENTRY_ONE
    assert children(root) == {f"_some_kernel{end}": f"{place / KERNEL}{end}" for end in (".cubin", ".json")}
    assert children(root, OTHER_GROUP).keys() == {"_other_kernel.cubin", "_other_kernel.json"}
    assert files_of(root).keys() == {*expected_files(contents(KERNEL, OTHER)), GROUP, OTHER_GROUP}


def test_a_wheel_without_kernels_of_the_engine_has_no_group(tmp_path: Path, root: Path) -> None:
    run(site(tmp_path), root)
    assert files_of(root) == expected_files(contents())


def test_it_goes_with_the_wheel_and_is_not_told_as_somebody_elses(tmp_path: Path, root: Path) -> None:
    root.mkdir()
    before = snapshot_of(root)
    run(site(tmp_path, KERNEL), root)
    assert remove(NAME, str(root), dry_run=True).left == ()
    assert remove(NAME, str(root)).left == ()
    assert snapshot_of(root) == before


def test_where_the_root_has_moved_the_next_deploy_writes_it_for_the_new_place(tmp_path: Path, root: Path) -> None:
    place = site(tmp_path, KERNEL)
    run(place, root)
    moved = root.rename(tmp_path / "elsewhere")
    assert not run(place, moved).changed
    assert all(path.startswith(f"{moved}/") for path in children(moved).values())
    remove(NAME, str(moved))
    assert not moved.exists() or list(moved.iterdir()) == []


def test_in_an_overlay_it_leads_to_the_overlay(tmp_path: Path, root: Path) -> None:
    place = site(tmp_path, KERNEL)
    base = tmp_path / "base"
    run(place, base)
    run(place, root, base_path=str(base))
    assert (root / f"{ENTRY_ONE}/{KERNEL}.cubin").is_symlink()
    assert all(path.startswith(f"{root}/") for path in children(root).values())
    assert all(path.startswith(f"{base}/") for path in children(base).values())


def test_other_weights_that_adopt_the_entry_have_its_kernels_too(tmp_path: Path, root: Path) -> None:
    place = site(tmp_path, KERNEL)
    [path] = place.glob("*/manifest.json")
    [entry] = from_dict(json.loads(path.read_bytes())).entries
    theirs = ENTRY_ONE.replace("1", "7")
    run(place, root, adopted=(Adopted.of(entry, theirs),))
    assert all(path.startswith(f"{root / theirs}/") for path in children(root, GROUP.replace("1", "7")).values())
    assert children(root)
    assert remove(NAME, str(root)).left == ()


def test_what_triton_has_written_stays(tmp_path: Path, root: Path) -> None:
    (root / GROUP).parent.mkdir(parents=True)
    (root / GROUP).write_text('{"child_paths": {}}')
    run(site(tmp_path, KERNEL), root)
    assert (root / GROUP).read_text() == '{"child_paths": {}}'
    assert GROUP not in noted(root)
    remove(NAME, str(root))
    assert files_of(root).keys() == {GROUP}


def test_an_upgrade_brings_its_own_and_a_rollback_those_before(tmp_path: Path, root: Path) -> None:
    run(site(tmp_path / "1", KERNEL), root)
    run(site(tmp_path / "2", OTHER, version="2.0.0"), root)
    assert not (root / GROUP).exists()
    assert children(root, OTHER_GROUP)
    deploy.rollback(NAME, str(root), make_host())
    assert children(root)
    assert not (root / OTHER_GROUP).exists()
    assert remove(NAME, str(root)).left == ()
    assert not root.exists() or list(root.iterdir()) == []


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_a_kill_leaves_no_group_without_its_kernel_and_the_next_deploy_completes_it(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """At every rename of a first deploy, and of an upgrade."""
    if version == "2.0.0":
        run(site(tmp_path / "1", KERNEL), root)
    place = site(tmp_path / "2", OTHER, version=version)
    real = os.rename
    left = 0

    class Killed(BaseException):
        pass

    def rename(old: str, new: str, **options: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        real(old, new, **options)

    for step in range(100):
        left = step
        monkeypatch.setattr(os, "rename", rename)
        try:
            run(place, root)
            break
        except Killed:
            for group in (GROUP, OTHER_GROUP):
                assert not (root / group).exists() or children(root, group)
        finally:
            monkeypatch.undo()
    else:
        pytest.fail("never done")
    assert step > 3, "nothing was killed"
    run(place, root)
    assert children(root, OTHER_GROUP)
    assert not (root / GROUP).exists()
    assert list(root.rglob(".model-cache-tmp-*")) == []


def test_a_hostile_name_gives_no_group(tmp_path: Path) -> None:
    document = make_document(contents(KERNEL))
    document["entries"][0]["files"][-1] |= {"kind": groups.KIND, "path": "../../x.json"}
    with pytest.raises(DamagedError):
        from_dict(document)
