"""rollback, gc, deploy --overlay and stale wheels, as a user meets them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factories import (
    CONTENTS,
    ENTRY_ONE,
    ENTRY_TWO,
    NAME,
    Contents,
    expected_files,
    files_of,
    folder_in_memory,
    make_engine,
    make_site,
)
from model_cache import plugin
from model_cache.cli import main
from model_cache.engine import startup

PYTHON = ".".join(map(str, sys.version_info[:3]))
HERE = {"engine.python": PYTHON, "engine.platform": f"linux_{os.uname().machine}"}
NEXT: Contents = {ENTRY_ONE: {"rank_0_0/model": b"next"}}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with folder_in_memory(tmp_path) as folder:
        root = folder / "root"
        monkeypatch.setenv("VLLM_CACHE_ROOT", str(root))
        yield root


class Environment:
    """A Python environment with an engine, in which one version of a wheel at a time is installed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.path = [*sys.path]
        self.monkeypatch = monkeypatch
        self.engine = "0.33.0"

    def install(self, version: str, contents: Contents) -> Path:
        site = make_site(self.folder / version, contents=contents, version=version, changes=HERE)
        self.use(site)
        return site

    def use(self, *sites: Path) -> None:
        engine = make_engine(self.folder / f"engine-{self.engine}", vllm=self.engine)
        self.monkeypatch.setattr(sys, "path", [*map(str, sites), str(engine), *self.path])


@pytest.fixture
def environment(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", "h100-sxm5-80gb")
    monkeypatch.delenv("MODEL_CACHE_DISABLE", raising=False)
    return Environment(tmp_path, monkeypatch)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the plug-in says at an engine's start."""
    caplog.set_level(logging.DEBUG, "vllm.model_cache")
    caplog.clear()
    plugin.register()
    return [record.getMessage() for record in caplog.records]


# rollback


def test_rollback(environment: Environment, root: Path, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    environment.install("1.0.0", CONTENTS)
    assert run("deploy")[0] == 0
    environment.install("2.0.0", NEXT)
    code, out, _ = run("deploy")
    assert code == 0
    assert out.startswith(f"switched: {NAME} from 1.0.0 to 2.0.0 (replaced: 1 entry; written: 4 B) for ")
    assert f"kept for `model-cache rollback {NAME}`: 1.0.0" in out
    code, out, err = run("rollback", NAME, "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith(f"would be rolled back: {NAME} from 2.0.0 to 1.0.0 (")
    code, out, err = run("rollback", NAME)
    assert (code, err) == (0, "")
    assert out.startswith(
        f"rolled back: {NAME} from 2.0.0 to 1.0.0 (deployed: 1 entry; replaced: 1 entry; written: 8.2 kB) for "
    )
    assert f"engine starts leave 2.0.0 alone; `model-cache deploy {NAME}` brings it back" in out
    assert files_of(root) == expected_files(CONTENTS)
    # What fits in general leaves it alone, and so does every engine start, which says so.
    code, out, _ = run("deploy")
    assert "was rolled back to 1.0.0" in out
    for _ in range(2):
        (line,) = said(caplog)
        assert line == (
            f"model-cache: {NAME} 2.0.0 was rolled back to 1.0.0 in {root}; `model-cache deploy {NAME}` brings it back"
        )
    assert files_of(root) == expected_files(CONTENTS)
    assert run("deploy", NAME)[0] == 0
    assert files_of(root) == expected_files(NEXT)
    assert said(caplog) == []


def test_another_version_with_the_same_files_is_no_unchanged_one(
    environment: Environment, root: Path, run: Any
) -> None:
    environment.install("1.0.0", CONTENTS)
    run("deploy")
    environment.install("1.0.1", CONTENTS)
    switched = f"switched: {NAME} from 1.0.0 to 1.0.1 (unchanged: 2 entries) for h100-sxm5-80gb in {root}\n"
    assert run("deploy", "--dry-run")[1].startswith(f"would be {switched}")
    (row,) = json.loads(run("deploy", "--dry-run", "--json")[1])["wheels"]
    assert (row["outcome"], row["from"], row["version"]) == ("deployed", "1.0.0", "1.0.1")
    out = run("deploy")[1]
    assert out.startswith(switched)
    assert f"kept for `model-cache rollback {NAME}`: 1.0.0" in out
    assert run("deploy")[1].startswith(f"unchanged: {NAME} 1.0.1 (2 entries)")
    (row,) = json.loads(run("deploy", "--json")[1])["wheels"]
    assert (row["outcome"], row["from"]) == ("unchanged", "")


def test_rollback_as_json_and_without_anything_to_go_back_to(environment: Environment, root: Path, run: Any) -> None:
    environment.install("1.0.0", CONTENTS)
    assert run("rollback", NAME)[0] == 5
    run("deploy")
    code, out, err = run("rollback", NAME)
    assert (code, out) == (5, "")
    assert err == f"model-cache: {NAME}: no version before 1.0.0 is kept in {root}\n"
    environment.install("2.0.0", NEXT)
    run("deploy")
    code, out, _ = run("rollback", NAME, "--json")
    (row,) = json.loads(out)["wheels"]
    assert (code, row["outcome"], row["from"], row["version"]) == (0, "rolled-back", "2.0.0", "1.0.0")
    assert (row["previous"], row["removed"]) == ("2.0.0", [])
    code, out, _ = run("rollback", NAME, "model-cache-x", "--json")
    assert code == 5
    assert [row["outcome"] for row in json.loads(out)["wheels"]] == ["rolled-back", "not-found"]


# gc and stale wheels


def test_gc_takes_away_what_belongs_to_a_wheel_that_is_gone(environment: Environment, root: Path, run: Any) -> None:
    site = environment.install("1.0.0", CONTENTS)
    run("deploy")
    environment.install("2.0.0", NEXT)
    run("deploy")
    (root / ENTRY_ONE / "added").touch()
    assert run("gc") == (0, f"nothing to remove in {root}\n", "")
    environment.use()
    # Another environment that shares the root: the wheel is still where it was deployed from.
    assert run("gc") == (0, f"nothing to remove in {root}\n", "")
    for folder in (site, site.parents[1] / "2.0.0/site"):
        folder.rename(folder.with_name("gone"))
    before = files_of(root)
    code, out, _ = run("gc", "--dry-run")
    assert code == 0
    assert out.startswith(f"would be removed: {NAME} 2.0.0 (1 entry, 4 B)\n  gone: the wheel is not installed")
    assert files_of(root) == before
    code, out, _ = run("gc", "--json")
    (row,) = json.loads(out)["wheels"]
    assert (code, row["removed"], row["left"], row["bytes"]) == (0, [ENTRY_ONE], [f"{ENTRY_ONE}/added"], 4)
    assert files_of(root) == {f"{ENTRY_ONE}/added": b""}
    assert not (root / ".model-cache").exists()
    assert run("gc")[1] == f"nothing to remove in {root}\n"


def test_gc_without_a_root_is_not_found(environment: Environment, run: Any) -> None:
    code, out, err = run("gc")
    assert (code, out) == (5, "")
    assert "there is no such cache root" in err


@pytest.mark.parametrize("data", [b"", b"garbage\xff", b"[]", b"{}", b" " * (16 * 1024 * 1024 + 1)])
def test_a_state_that_is_none_names_its_file_and_hides_no_other(
    environment: Environment, root: Path, run: Any, data: bytes
) -> None:
    environment.install("1.0.0", CONTENTS)
    run("deploy")
    bad = root / ".model-cache/model-cache-bad.json"
    bad.write_bytes(data)
    (root / ".model-cache/kept/model-cache-bad").mkdir()
    for command, told in (("status", f"{NAME} 1.0.0: intact"), ("gc", "")):
        code, out, err = run(command)
        assert (code, told in out) == (3, True)
        assert str(bad) in err
        assert "delete that file, then `model-cache deploy model-cache-bad`" in err
    assert (root / ".model-cache/kept/model-cache-bad").exists()
    assert run("deploy")[0] == 0
    state_file = root / f".model-cache/{NAME}.json"
    state_file.write_bytes(data)
    code, _, err = run("deploy")
    assert code == 3
    assert str(state_file) in err
    state_file.unlink()
    assert run("deploy")[0] == 0


def test_a_state_of_another_name_is_damaged(environment: Environment, root: Path, run: Any) -> None:
    environment.install("1.0.0", CONTENTS)
    run("deploy")
    state_file = root / f".model-cache/{NAME}.json"
    state_file.write_text(state_file.read_text().replace(f'"{NAME}"', '"model-cache-gone"'))
    code, out, err = run("gc")
    assert (code, out) == (3, "")
    assert "name is that of another wheel: 'model-cache-gone'" in err
    assert files_of(root) == expected_files()
    code, out, _ = run("status")
    assert code == 3
    assert "nothing is deployed" not in out


def test_gc_deletes_what_killed_deploys_have_left(environment: Environment, root: Path, run: Any) -> None:
    from model_cache.store.root import temporary_name

    environment.install("1.0.0", CONTENTS)
    run("deploy")
    parent = (root / ENTRY_ONE).parent
    (parent / temporary_name()).mkdir()
    (root / ".model-cache/kept/model-cache-forgotten").mkdir()
    assert "2 unfinished or forgotten things" in run("gc")[1]
    assert files_of(root) == expected_files()
    assert {path.name for path in parent.iterdir()} == {Path(ENTRY_ONE).name, Path(ENTRY_TWO).name}


def test_a_wheel_for_a_replaced_engine_is_stale(
    environment: Environment, root: Path, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site = environment.install("1.0.0", CONTENTS)
    said(caplog)
    assert run("list")[1].count("stale") == 0
    environment.engine = "0.34.0"
    environment.use(site)
    reason = "vllm is 0.34.0, the wheel was built for 0.33.0"
    assert f"stale: {NAME}: {reason}\n" in run("list")[1]
    (row,) = json.loads(run("list", "--json")[1])["wheels"]
    assert row["stale"] == [reason]
    # The plug-in says it once, and not at every start.
    (line,) = said(caplog)
    assert line == f"model-cache: {NAME} 1.0.0 is stale: {reason}; `model-cache gc` removes it"
    assert said(caplog) == []
    assert files_of(root) == expected_files()
    assert f"  stale: {reason}\n" in run("gc")[1]
    assert files_of(root) == {}


def test_without_an_engine_nothing_is_stale(environment: Environment, root: Path, run: Any) -> None:
    """In an environment without an engine (an image's build stage, say) nothing can be said."""
    site = environment.install("1.0.0", CONTENTS)
    run("deploy")
    environment.monkeypatch.setattr(sys, "path", [str(site), *environment.path])
    assert "stale" not in run("list")[1]
    assert run("gc") == (0, f"nothing to remove in {root}\n", "")


# overlay


def test_an_overlay_prints_the_environment_that_leads_to_it(
    environment: Environment, root: Path, run: Any, tmp_path: Path
) -> None:
    environment.install("1.0.0", CONTENTS)
    run("deploy")
    over = tmp_path / "over lay"
    code, out, err = run("deploy", "--overlay", str(over))
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"VLLM_CACHE_ROOT='{over}'"
    assert all(path.is_symlink() for path in over.rglob("model"))
    assert run("deploy", "--overlay", str(over), "--quiet")[1] == f"VLLM_CACHE_ROOT='{over}'\n"
    data = json.loads(run("deploy", "--overlay", str(over), "--json")[1])
    assert data["environment"] == {"VLLM_CACHE_ROOT": str(over)}
    assert data["root"] == str(over)
    assert run("verify", NAME, "--root", str(over))[0] == 0
    (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"x")
    assert run("verify", NAME, "--root", str(over))[0] == 3
    assert run("deploy", "--overlay", str(root))[0] == 2


# Engine starts


def test_an_overlay_of_a_place_whose_path_is_no_text(environment: Environment, root: Path, run: Any) -> None:
    environment.install("1.0.0", CONTENTS)
    raw = os.fsdecode(os.fsencode(root) + b"\xff")
    overlay = str(root.with_name("overlay"))
    assert run("deploy", "--root", raw)[0] == 0
    assert run("deploy", "--root", raw, "--overlay", overlay)[0] == 0
    code, out, _ = run("status", "--root", overlay)
    assert code == 0
    assert ": intact, " in out
    code, _, err = run("deploy", "--root", raw, "--overlay", f"{raw}-overlay")
    assert (code, "no shell line can hold" in err) == (2, True)
    assert not Path(f"{raw}-overlay").exists()
    assert run("remove", NAME, "--root", overlay)[0] == 0


def test_a_disk_that_does_not_answer_does_not_hang_the_engine(
    environment: Environment, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system call on a dead network disk cannot be interrupted; the engine goes on without it."""
    environment.install("1.0.0", CONTENTS)
    answered = threading.Event()
    real = startup.deploy

    def hanging(*arguments: Any, **options: Any) -> Any:
        answered.wait(30)
        return real(*arguments, **options)

    monkeypatch.setattr(startup, "deploy", hanging)
    monkeypatch.setattr(startup, "GRACE", 0.1)
    monkeypatch.setattr(startup.deploy_installed, "__defaults__", (0.2,))
    others = {*threading.enumerate()}
    start = time.perf_counter()
    lines = said(caplog)
    assert time.perf_counter() - start < 1.5
    assert lines == [f"model-cache: gave up after 0.3 s: {root} or a wheel's disk does not answer"]
    (worker,) = [one for one in threading.enumerate() if one.name == "model-cache" and one not in others]
    answered.set()
    worker.join(10)
    assert len(caplog.records) == 1, "a worker that wakes up late has nothing to say any more"
    assert startup.SECONDS + 1.0 <= 10


def test_a_start_leaves_a_reserve_on_the_disk(
    environment: Environment, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from model_cache.store import files
    from model_cache.store.root import Root

    environment.install("1.0.0", CONTENTS)
    monkeypatch.setattr(Root, "free_bytes", lambda self: files.RESERVE_BYTES + 8000)
    (line,) = said(caplog)
    assert "not enough space" in line
    assert files_of(root) == {}
