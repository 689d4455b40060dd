"""A version switches entry by entry; whoever starts an engine with the plug-in never sees it half done."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from factories import (
    A100,
    ENTRY_ONE,
    ENTRY_TWO,
    NAME,
    Contents,
    expected_files,
    files_of,
    folder_in_memory,
    make_compiler,
    make_cpu,
    make_gpu,
    make_host,
    make_site,
    run,
)
from model_cache.cli import main
from model_cache.engine import startup
from model_cache.machine.host import Gpus, Hardware
from model_cache.store import deploy, state, switch
from model_cache.store.removal import remove
from model_cache.store.root import Root
from model_cache.store.state import State
from model_cache.wheel.discovery import find
from model_cache.wheel.names import data_package
from test_deploy import STEPS, end_this_process_at_call, leftovers

ENTRY_THREE = ENTRY_ONE[:-64] + "3" * 64
ENTRY_FOUR = ENTRY_ONE[:-64] + "4" * 64
OLD: Contents = {entry: {"rank_0_0/model": b"old"} for entry in (ENTRY_ONE, ENTRY_TWO, ENTRY_THREE)}
NEW: Contents = {entry: {"rank_0_0/model": b"new"} for entry in (ENTRY_ONE, ENTRY_TWO, ENTRY_FOUR)}
CONTENTS = {"1.0.0": OLD, "2.0.0": NEW}


class Place:
    """A cache root, and an environment in which one of two versions of a wheel may be installed."""

    def __init__(self, folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.sites = {v: make_site(folder / v, contents=c, version=v) for v, c in CONTENTS.items()}
        self.monkeypatch = monkeypatch

    def deploy(self, version: str) -> None:
        run(self.sites[version], self.root)

    def start(self, version: str | None) -> list[str]:
        """What the plug-in says at the start of an engine in an environment with that version installed."""
        wheels = find(NAME, [str(self.sites[version])]) if version else []
        self.monkeypatch.setattr(startup, "installed", lambda name: wheels[0])
        said: list[str] = []
        startup.deploy_installed(wheels, str(self.root), "a host", lambda text, *, alarm=False: said.append(text))
        return said

    @property
    def version(self) -> str | None:
        """The one version that the engine sees; None for anything else."""
        found = {path: data for path, data in files_of(self.root).items() if "/.model-cache-tmp-" not in path}
        return next((version for version, contents in CONTENTS.items() if found == expected_files(contents)), None)

    @property
    def state(self) -> State:
        with Root.open(str(self.root)) as root:
            return state.require(root, NAME)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(startup, "read_host", lambda *_: make_host())
    with folder_in_memory(tmp_path) as folder:
        yield Place(tmp_path, folder / "root", monkeypatch)


def killed(work: Callable[[], object], before: str = "_place", number: int = 2) -> None:
    """Do work in a process that is killed when `switch` is about to move its n-th entry into place."""
    pid = os.fork()
    if pid == 0:
        real, calls = getattr(switch, before), []

        def last(*arguments: object) -> object:
            calls.append(arguments)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        setattr(switch, before, last)
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def rollback(place: Place) -> None:
    deploy.rollback(NAME, str(place.root), make_host())


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize(
    ("wheel", "version"), [("there", "2.0.0"), ("gone", "1.0.0"), ("damaged", "1.0.0"), ("replaced", "1.0.0")]
)
def test_an_upgrade_killed_between_two_entries_is_over_before_the_engine_looks(
    place: Place, number: int, wheel: str, version: str
) -> None:
    place.deploy("1.0.0")
    (place.root / ENTRY_ONE / "inductor_cache").mkdir()
    (place.root / ENTRY_ONE / "inductor_cache/x").write_bytes(b"added")
    killed(lambda: place.deploy("2.0.0"), number=number)
    assert place.version is None, "the kill came too early or too late to show anything"
    assert place.state.phase == "deploying"
    if wheel == "damaged":
        for blob in place.sites["2.0.0"].rglob("blobs/*/*"):
            blob.write_bytes(b"xxx")
    if wheel == "gone":
        shutil.rmtree(place.sites["2.0.0"])
    said = place.start({"there": "2.0.0", "gone": None, "damaged": "2.0.0", "replaced": "1.0.0"}[wheel])
    assert files_of(place.root).pop(f"{ENTRY_ONE}/inductor_cache/x") == b"added"
    shutil.rmtree(place.root / ENTRY_ONE / "inductor_cache")
    assert place.version == version
    assert (place.state.version, place.state.phase, place.state.superseded) == (version, "deployed", ())
    assert leftovers(place.root) == []
    if wheel == "gone":
        (line,) = said
        assert line.startswith(f"{NAME} 1.0.0: brought it back, since 2.0.0 is half deployed: ")
        assert place.start(None) == []


def test_a_half_done_switch_is_told(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.deploy("1.0.0")
    killed(lambda: place.deploy("2.0.0"))
    place.monkeypatch.syspath_prepend(str(place.sites["2.0.0"]))
    assert main(["status", "--root", str(place.root), "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["wheels"]
    assert (row["version"], row["phase"], row["intact"]) == ("2.0.0", "deploying", False)
    assert main(["status", "--root", str(place.root)]) == 0
    assert f"{NAME} 2.0.0: NOT intact (deploying)" in capsys.readouterr().out
    assert main(["verify", NAME, "--root", str(place.root)]) == 3
    assert "the last deploy was interrupted (phase deploying)" in capsys.readouterr().err


@pytest.mark.parametrize("installed", ["2.0.0", "1.0.0", None])
def test_a_rollback_killed_between_two_entries_is_completed(place: Place, installed: str | None) -> None:
    """The installed version is the one that was rolled back from, and is held: it must not keep the mixture alive."""
    place.deploy("1.0.0")
    place.deploy("2.0.0")
    killed(lambda: rollback(place))
    assert place.version is None
    said = place.start(installed)
    assert place.version == "1.0.0"
    assert place.state.phase == "deployed"
    if installed != "1.0.0":
        assert f"{NAME} 1.0.0: completed its deploy, which had been cut short" in said
        assert not any("brought" in line for line in place.start("2.0.0")), "what is held stays held"
        assert place.version == "1.0.0"


def test_a_rollback_that_was_killed_goes_on_in_its_direction(place: Place) -> None:
    place.deploy("1.0.0")
    place.deploy("2.0.0")
    killed(lambda: rollback(place))
    rollback(place)
    assert place.version == "1.0.0"
    rollback(place)
    assert place.version == "2.0.0"


def test_killed_at_any_call_the_next_start_sees_one_version(place: Place) -> None:
    """At every changing system call of an upgrade and of a rollback: with the wheel, and without any."""
    for end_at in range(1, 500, 2 * STEPS["kill"] if STEPS else 1):
        for way, installed in (("upgrade", "2.0.0"), ("upgrade", None), ("rollback", None), ("remove", None)):
            shutil.rmtree(place.root, ignore_errors=True)
            place.deploy("1.0.0")
            if way != "upgrade":
                place.deploy("2.0.0")
            pid = os.fork()
            if pid == 0:
                work = {"upgrade": lambda: place.deploy("2.0.0"), "rollback": lambda: rollback(place)}
                try:
                    end_this_process_at_call(end_at)
                    work.get(way, lambda: remove(NAME, str(place.root)))()
                    os._exit(0)
                finally:
                    os._exit(1)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code in (0, 9)
            place.start(installed)
            if way == "remove":
                assert files_of(place.root) == {} or place.version == "2.0.0", end_at
            else:
                assert place.version in CONTENTS, (end_at, way, installed)
            if code == 0 and way == "upgrade" and installed is None:
                assert end_at > 40
                return
    pytest.fail("never reached the end")


def test_a_start_waits_for_a_switch_that_is_under_way(place: Place) -> None:
    place.deploy("1.0.0")
    reached, opener = os.pipe()
    pid = os.fork()
    if pid == 0:
        real, calls = switch._place, []

        def slow(*arguments: object) -> object:
            calls.append(arguments)
            if len(calls) == 2:
                os.write(opener, b"x")
                time.sleep(0.5)
            return real(*arguments)

        switch._place = slow
        try:
            place.deploy("2.0.0")
        finally:
            os._exit(0)
    os.read(reached, 1)
    assert place.version is None
    place.start("2.0.0")
    assert place.version == "2.0.0"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(reached)
    os.close(opener)


def test_two_starts_at_once_finish_it_once(place: Place) -> None:
    place.deploy("1.0.0")
    killed(lambda: place.deploy("2.0.0"))
    threads = [threading.Thread(target=place.start, args=("2.0.0",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert place.version == "2.0.0"


def test_without_either_version_nothing_half_done_stays_in_the_engine_s_way(place: Place) -> None:
    place.deploy("1.0.0")
    killed(lambda: place.deploy("2.0.0"))
    shutil.rmtree(place.sites["2.0.0"])
    for blob in (place.root / ".model-cache/kept").rglob("blobs/*/*"):
        blob.unlink()
    (place.root / ENTRY_TWO / "added").write_bytes(b"added")
    (line,) = place.start(None)
    assert f"withdrawn from {place.root}: {NAME} 2.0.0: is half deployed, and cannot be completed" in line
    assert f"files that are not ours stay: {ENTRY_TWO}/added" in line
    assert files_of(place.root) == {f"{ENTRY_TWO}/added": b"added"}


def test_a_first_deploy_that_was_killed_and_cannot_be_completed_is_told_and_left(place: Place) -> None:
    """There is one version only, and each entry of it is whole: an engine may as well load it."""
    killed(lambda: place.deploy("2.0.0"))
    before = files_of(place.root)
    assert before
    shutil.rmtree(place.sites["2.0.0"] / data_package(NAME) / "blobs")
    for _ in range(2):
        *_, line = place.start("2.0.0")
        assert "is half deployed, and cannot be completed" in line
        assert files_of(place.root) == before


def test_what_another_kind_of_host_was_killed_at_is_left_to_it(place: Place) -> None:
    place.deploy("1.0.0")
    killed(lambda: place.deploy("2.0.0"))
    before = files_of(place.root)
    place.monkeypatch.setattr(startup, "read_host", lambda *_: make_host(make_gpu(A100)))
    assert place.start(None) == []
    assert files_of(place.root) == before
    assert place.state.phase == "deploying"


@pytest.mark.parametrize("failed", [True, False])
def test_a_driver_that_does_not_answer_once_does_not_keep_it_half_done(place: Place, failed: bool) -> None:
    place.deploy("1.0.0")
    place.deploy("2.0.0")
    killed(lambda: rollback(place))
    nothing = Gpus((), "no answer", failed=failed)
    mute = make_host(hardware=Hardware(lambda: nothing, make_cpu, make_compiler))
    with place.monkeypatch.context() as patch:
        patch.setattr(startup, "read_host", lambda *_: mute)
        place.start(None)
    stamps = place.root / ".model-cache/stamps"
    assert stamps.is_dir() is not failed, "a start that looks at the stamp only would leave it as it is"
    place.start(None)
    assert place.version == "1.0.0"


def test_an_interrupted_removal_is_completed(place: Place) -> None:
    place.deploy("2.0.0")
    pid = os.fork()
    if pid == 0:
        try:
            end_this_process_at_call(30)
            remove(NAME, str(place.root))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert place.state.phase == "removing"
    assert place.start(None) == [f"{NAME} 2.0.0: completed its removal, which had been cut short"]
    assert not place.root.exists() or list(place.root.iterdir()) == []
