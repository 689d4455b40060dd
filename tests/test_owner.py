"""Who changes a root is alone, also where flock does nothing or does not exist."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from factories import folder_in_memory
from model_cache.store import owner
from model_cache.store.root import Root
from model_cache.wheel.verify import Deadline, DeadlineError


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with folder_in_memory(tmp_path) as folder:
        yield folder / "root"


def hold(root: Path, seconds: float = 0.1) -> None:
    with Root.open(str(root), create=True) as opened, opened.lock(Deadline(seconds)):
        pass


@pytest.fixture(params=["nothing", "missing"])
def no_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        if request.param == "missing":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)


def leave(root: Path, text: str, age: float = 0) -> Path:
    """What an owner leaves who was killed."""
    path = root / ".model-cache/owner"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if age:
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    return path


@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize("links", [True, False])
def test_only_one_at_a_time_without_flock(root: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    with Root.open(str(root), create=True) as one, one.lock(Deadline()):
        assert one.locked, "what this system has left here is dead"
        with pytest.raises(DeadlineError):
            hold(root)
    hold(root)
    assert [path.name for path in (root / ".model-cache").iterdir()] == ["lock"]


@pytest.mark.usefixtures("no_flock")
def test_an_owner_that_was_killed_is_not_waited_for(root: Path) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    dead = owner.identity().replace(f" {os.getpid()} ", f" {pid} ")
    leave(root, dead)
    hold(root)


@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize("who", ["another-boot pid:[1] 1 aa", "", "x", "\xff"])
def test_an_owner_that_cannot_be_looked_up_is_waited_for_but_not_forever(root: Path, who: str) -> None:
    path = leave(root, who)
    with pytest.raises(DeadlineError):
        hold(root)
    assert path.exists()
    leave(root, who, age=owner.STALE_SECONDS + 10)
    hold(root)
    assert not path.exists()


def test_with_a_lock_that_works_nobody_of_this_system_is_waited_for(root: Path) -> None:
    leave(root, owner.identity())
    hold(root)
    leave(root, owner.identity().replace("pid:[", "pid:[9"))  # another container
    hold(root)
    leave(root, "another-boot pid:[1] 1 aa")  # another host: the lock may not reach it
    with pytest.raises(DeadlineError):
        hold(root)


def test_an_owner_who_came_a_moment_ago_is_not_evicted(root: Path) -> None:
    path = leave(root, "somebody new")
    with Root.open(str(root)) as opened, opened.state_directory() as directory:
        owner._evict(directory, "aside", "somebody stale")
        assert path.read_text() == "somebody new"
        owner._evict(directory, "aside", "somebody new")
    assert not path.exists()


def test_it_is_released_although_the_disk_fails_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.unlink
    failures = []

    def failing(name: str, **options: int) -> None:
        if name == "owner" and not failures:
            failures.append(name)
            raise OSError(errno.EIO, "once")
        real(name, **options)

    monkeypatch.setattr(os, "unlink", failing)
    hold(root)
    assert failures
    assert not (root / ".model-cache/owner").exists()
