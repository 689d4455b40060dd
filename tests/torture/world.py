"""What the torture works on: three versions of one wheel, cache roots in memory, and the checks after every blow."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "hatch_plugin")]

from factories import CONTENTS, ENTRY_ONE, ENTRY_TWO, NAME, Contents, make_host, make_site  # noqa: E402
from model_cache.engine import startup  # noqa: E402
from model_cache.errors import ModelCacheError, NotFoundError  # noqa: E402
from model_cache.store import deploy, kept, state  # noqa: E402
from model_cache.store.plan import Outcome  # noqa: E402
from model_cache.store.removal import remove  # noqa: E402
from model_cache.store.root import Root  # noqa: E402
from model_cache.store.state import State  # noqa: E402
from model_cache.wheel.discovery import find  # noqa: E402
from model_cache.wheel.payload import InstalledPayload  # noqa: E402

BIG = os.urandom(150_000)
ENTRY_THREE = ENTRY_ONE[:-64] + "3" * 64
VERSIONS: dict[str, Contents] = {
    "1.0.0": CONTENTS,
    "2.0.0": {ENTRY_ONE: {"rank_0_0/model": BIG, "rank_1_0/model": b"two"}, ENTRY_THREE: {"rank_0_0/model": b"3"}},
    "3.0.0": {ENTRY_ONE: {"rank_0_0/model": b"three"}, ENTRY_TWO: CONTENTS[ENTRY_TWO]},
}
HINT = "modelinfos/x.json"
HINTS = {version: json.dumps({"of": version}) for version in VERSIONS}
RANKS = ("rank_0_0/model", "rank_1_0/model")
ADDED = "inductor_cache"


class Failed(Exception):  # noqa: N818
    """Something was lost or torn."""


class World:
    """One folder with the three installed wheels; `root` is the cache root at hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.host = make_host()
        self.sites = {
            version: make_site(
                folder / version, contents=contents, version=version, changes={"hints": {HINT: HINTS[version]}}
            )
            for version, contents in VERSIONS.items()
        }

    def deploy(self, version: str) -> Outcome:
        found = find(NAME, [str(self.sites[version])])
        if not found:
            raise NotFoundError("the wheel's place cannot be read")  # as `lookup` says it
        with InstalledPayload(found[0]) as payload:
            return deploy.deploy(payload, str(self.root), self.host)

    def rollback(self) -> None:
        deploy.rollback(NAME, str(self.root), self.host)

    def remove(self) -> None:
        remove(NAME, str(self.root))

    def start(self, version: str | None) -> list[str]:
        """The plug-in at the start of an engine with that version installed, or none; what it says."""
        wheels = find(NAME, [str(self.sites[version])]) if version else []
        said: list[str] = []
        startup.read_host = lambda *_: self.host
        startup.installed = lambda _: wheels[0]
        startup.deploy_installed(wheels, str(self.root), "torture", lambda text, *, alarm=False: said.append(text))
        return said

    def anything(self, chance: random.Random) -> None:
        """One random change; that there is nothing to remove or to roll back to is fine."""
        what = chance.choice(["deploy", "deploy", "deploy", "rollback", "remove"])
        if what == "deploy":
            self.deploy(chance.choice([*VERSIONS]))
        else:
            with suppress(ModelCacheError):
                self.remove() if what == "remove" else self.rollback()

    def fresh(self, version: str | None = None) -> None:
        """Start from an empty root, or from one in which `version` is deployed after another one."""
        shutil.rmtree(self.root, ignore_errors=True)
        if version:
            self.deploy("3.0.0" if version != "3.0.0" else "1.0.0")
            self.deploy(version)

    def check_not_torn(self) -> int:
        """Every entry is absent, or holds whole files of one and the same version; how many were looked at."""
        entries = {directory for contents in VERSIONS.values() for directory in contents}
        for entry in sorted(entries):
            found = {rank: data for rank in RANKS if (data := read(self.root / entry / rank)) is not None}
            if found and not versions_of(entry, found):
                raise Failed(f"{entry[-4:]} is torn: { {rank: len(data) for rank, data in found.items()} }")
        # A hint may be missing, and where the system lies about what is there, be another version's.
        if (hint := read(self.root / HINT)) is not None and hint.decode() not in HINTS.values():
            raise Failed(f"a hint is torn: {hint!r}")
        return len(entries)

    def check_one_version(self, chance: random.Random) -> None:
        """Start an engine, with some version installed or none, and find all of one version in its way, or nothing."""
        version = chance.choice([None, *VERSIONS])
        before = self._state() if (self.root / ".model-cache").is_dir() else None
        said = self.start(version)
        found = {p: d for p, d in self.files().items() if f"/{ADDED}/" not in p and ".model-cache-tmp-" not in p}
        found.pop(HINT, None)
        if found and not any(found == expected(one) for one in VERSIONS.values()):
            raise Failed(f"a mixture after a start with {version}: {sorted(found)}; said: {said}; before: {before}")

    def check_healed(self, version: str) -> None:
        """Deploy, and find exactly that version (beside what an engine has added), and nothing unfinished."""
        before = (self.root / ".model-cache").is_dir() and self._state()
        outcome = self.deploy(version)
        wanted = expected(VERSIONS[version])
        found = {path: data for path, data in self.files().items() if f"/{ADDED}/" not in path and path != HINT}
        if found != wanted:
            wrong = sorted(path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path))
            raise Failed(f"after healing to {version}: {wrong}; {outcome}; before: {before}")
        if left := [str(path.relative_to(self.root)) for path in self.root.rglob(".model-cache-tmp-*")]:
            raise Failed(f"left unfinished: {left}")
        with Root.open(str(self.root)) as root:
            found_state = state.require(root, NAME)
            if (found_state.version, found_state.phase, found_state.superseded) != (version, "deployed", ()):
                raise Failed(f"the state says {found_state.version} {found_state.phase}")
            versions = sorted(path.name for path in (self.root / kept.folder(NAME)).iterdir())
            if (
                not {found_state.manifest_sha256}
                <= set(versions)
                <= {found_state.manifest_sha256, found_state.previous}
            ):
                raise Failed(f"kept are {versions}")

    def check_hint(self, version: str) -> None:
        """After healing: the hint is that version's."""
        if (hint := read(self.root / HINT)) != HINTS[version].encode():
            raise Failed(f"after healing to {version}: the hint is {hint!r}")

    def _state(self) -> State | None:
        with Root.open(str(self.root)) as root:
            return state.load(root, NAME)

    def files(self) -> dict[str, bytes]:
        """The regular files below the root but our own."""
        found = {}
        for path in self.root.rglob("*"):
            relative = path.relative_to(self.root).as_posix()
            if not relative.startswith(".model-cache") and path.is_file():
                found[relative] = path.read_bytes()
        return found


def expected(contents: Contents) -> dict[str, bytes]:
    """The files of one version: path relative to the root → content."""
    return {f"{entry}/{path}": data for entry, listed in contents.items() for path, data in listed.items()}


def read(path: Path) -> bytes | None:
    """The content of a file, None when it is not there."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def versions_of(entry: str, found: Mapping[str, bytes]) -> set[str]:
    """The versions of an entry that hold all of the files found."""
    return {
        version
        for version, contents in VERSIONS.items()
        if entry in contents and all(contents[entry].get(rank) == data for rank, data in found.items())
    }


@contextmanager
def world() -> Iterator[World]:
    """A world in memory where possible: thousands of fsyncs on a disk take an hour."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        Path(folder).chmod(0o755)
        yield World(Path(folder))


def in_child(work: object, *arguments: object) -> int:
    """Run a function in a fork of this process; its exit status, negative for a signal. A ModelCacheError is 3."""
    pid = start(work, *arguments)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start(work: object, *arguments: object) -> int:
    """As `in_child`, without waiting; the process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work(*arguments)
        code = 0
    except ModelCacheError:
        code = 3
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)
