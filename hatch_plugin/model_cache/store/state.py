"""What deploy has put into a cache root, one JSON file per wheel below `.model-cache/`.

A state is written before the first rename (phase "deploying") and after the last ("deployed"), so that
whatever a killed process leaves behind can be told from the engine's own files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from model_cache.errors import DamagedError, ModelCacheError, NotFoundError
from model_cache.store import files
from model_cache.store.root import Root, temporary_name
from model_cache.wheel.names import RESERVED, normalize, unsafe_path
from model_cache.wheel.strict_json import Fields, loads

VERSION = 1
MAX_BYTES = 16 * 1024 * 1024
PHASES = frozenset({"deploying", "deployed", "removing", "withdrawn"})
"""withdrawn: taken out of the engine's way, because this host does not trust its signer any more."""


_RAW = "bytes:"
"""A path that is not UTF-8 is noted as this and its bytes in hexadecimal digits."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_OR_NOTHING = re.compile(r"([0-9a-f]{64})?")


@dataclass(frozen=True)
class DeployedFile:
    """A file below an entry's directory. size in bytes; mtime_ns: 0 until it is in place.

    link: in an overlay, the absolute path of the read-only file that it is a link to; else "".
    """

    path: str
    sha256: str
    size: int
    mtime_ns: int = 0
    link: str = ""

    @property
    def apparent_size(self) -> int:
        """What lstat says of it in place: of a link, the length of its target's path."""
        return len(os.fsencode(self.link)) if self.link else self.size


@dataclass(frozen=True)
class DeployedEntry:
    """An entry's directory below the root. ours: put there by deploy; else found there and left alone.

    adopted: the directory of the wheel's entry whose files were put there under an engine's key (`adoption`); else "".
    """

    directory: str
    ours: bool
    files: tuple[DeployedFile, ...]
    adopted: str = ""


@dataclass(frozen=True)
class State:
    """What is deployed of one wheel.

    superseded: entries of the version before, still to be removed. previous: manifest_sha256 of the version that is
    kept for a rollback, or "". held: that of the version that was rolled back from, which only a deploy by name brings
    back, or "". site: where the wheel was installed that was deployed, or "" (a kept one). hints: of the manifest's,
    those that were put there, or may have been: while deploying, also those of the version before. direct: compiled
    straight into this root, so that no wheel of it need be installed anywhere.
    """

    name: str
    version: str
    manifest_sha256: str
    phase: str
    targets: tuple[str, ...]
    entries: tuple[DeployedEntry, ...]
    superseded: tuple[DeployedEntry, ...] = ()
    previous: str = ""
    held: str = ""
    site: str = ""
    hints: tuple[DeployedFile, ...] = ()
    direct: bool = False

    def ours(self) -> tuple[DeployedEntry, ...]:
        """Every entry that may hold files of ours, of this version and of the one before."""
        return tuple(entry for entry in (*self.entries, *self.superseded) if entry.ours)

    def entry(self, directory: str) -> DeployedEntry | None:
        return next((entry for entry in self.entries if entry.directory == directory), None)

    def in_phase(self, phase: str) -> State:
        return replace(self, phase=phase)

    @property
    def rollback_to(self) -> str:
        """manifest_sha256 of the kept version that a rollback brings back, or "".

        That is the one before, or the one that a killed rollback was about to bring back.
        """
        return self.manifest_sha256 if self.phase == "deploying" and self.held else self.previous


def parents(directories: Iterable[str]) -> list[str]:
    """The directories in which a killed deploy or removal of these entries may have left something unfinished."""
    return sorted({directory.rpartition("/")[0] for directory in directories} | {RESERVED})


def load(root: Root, name: str) -> State | None:
    """The state of wheel `name`, None if there is none. Raises DamagedError if it cannot be understood."""
    file = f"{normalize(name)}.json"
    what = f"state of {name}: {root.path}/{RESERVED}/{file}"
    remedy = f"delete that file, then `model-cache deploy {normalize(name)}`"
    try:
        with root.state_directory() as directory:
            data = _read(directory, file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise files.failure("cannot read the state", f"{root.path}/{RESERVED}/{file}", error) from None
    problems: list[str] = []
    try:
        document = Fields(loads(data, what, MAX_BYTES), "", problems)
    except DamagedError as error:
        raise DamagedError(f"{error.message}; {remedy}", error.problems) from None
    if document.integer("state_version") != VERSION and not problems:
        raise DamagedError(f"{what}: is of another version of hatch-model-cache; upgrade hatch-model-cache")
    state = _state(document)
    document.done()
    if normalize(state.name) != normalize(name):
        document.problem("name", f"is that of another wheel: {state.name!r:.80}")
    if problems:
        raise DamagedError(f"{what}: is damaged; {remedy}", problems)
    return state


def load_all(root: Root) -> tuple[list[State], list[ModelCacheError]]:
    """Every state that can be understood, and what is wrong with the others: one may not hide the rest."""
    found: list[State] = []
    errors: list[ModelCacheError] = []
    for name in names(root):
        try:
            if loaded := load(root, name):
                found.append(loaded)
        except ModelCacheError as error:
            errors.append(error)
    return found, errors


def _read(directory: int, name: str) -> bytes:
    # Without a state we would take what we have deployed for somebody else's.
    with os.fdopen(files.patiently(directory, name, lambda: files.open_regular(directory, name)), "rb") as file:
        return file.read(MAX_BYTES + 1)


def require(root: Root, name: str) -> State:
    """As `load`, for those who need one. Raises NotFoundError when there is none."""
    state = load(root, name)
    if state is None:
        known = ", ".join(names(root)) or "nothing"
        raise NotFoundError(f"{name}: is not deployed in {root.path}; deployed there: {known}")
    return state


def names(root: Root) -> list[str]:
    """The names of the wheels that have a state in this root; two spellings of a name are one."""
    try:
        with root.state_directory() as directory:
            found = os.listdir(directory)
            return sorted({normalize(name.removesuffix(".json")) for name in found if name.endswith(".json")})
    except FileNotFoundError:
        return []


def save(root: Root, state: State) -> None:
    """Write the state durably. Raises OSError."""
    plain = {"state_version": VERSION, **_plain(state)}
    data = json.dumps(plain, sort_keys=True, indent=1).encode() + b"\n"
    with root.state_directory(create=True) as directory:
        files.write_atomically(directory, f"{normalize(state.name)}.json", data, temporary_name())
    root.forget_stamps()


def delete(root: Root, name: str) -> None:
    """Forget wheel `name`. Raises OSError."""
    with root.state_directory() as directory:
        os.unlink(f"{normalize(name)}.json", dir_fd=directory)
        os.fsync(directory)
    root.forget_stamps()


def _plain(value: State | DeployedEntry | DeployedFile) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, tuple):
            item = [_plain(part) if isinstance(part, (DeployedEntry, DeployedFile)) else part for part in item]
        found[field.name] = _noted(item) if field.name in ("site", "link") else item
    return found


def _noted(path: str) -> str:
    """A path of this system in a form that JSON can hold; any sequence of bytes may be one."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return _RAW + os.fsencode(path).hex()
    return path


def _noted_path(f: Fields, key: str) -> str:
    noted = f.text(key)
    if not noted.startswith(_RAW):
        return noted
    try:
        return os.fsdecode(bytes.fromhex(noted.removeprefix(_RAW)))
    except ValueError:
        f.problem(key, "has a wrong form")
        return ""


def _state(f: Fields) -> State:
    return State(
        name=f.text("name"),
        version=f.text("version"),
        manifest_sha256=f.text("manifest_sha256"),
        phase=f.text("phase", choices=PHASES),
        targets=f.texts("targets"),
        entries=f.objects("entries", _entry),
        superseded=f.objects("superseded", _entry),
        previous=f.text("previous", _DIGEST_OR_NOTHING),
        held=f.text("held", _DIGEST_OR_NOTHING),
        site=_noted_path(f, "site"),
        hints=f.objects("hints", _file),
        direct=f.boolean("direct"),
    )


def _entry(f: Fields) -> DeployedEntry:
    directory, ours, listed = _path(f, "directory"), f.boolean("ours"), f.objects("files", _file)
    return DeployedEntry(directory, ours, listed, _path(f, "adopted") if f.value.get("adopted") else f.text("adopted"))


def _file(f: Fields) -> DeployedFile:
    path, digest = _path(f, "path"), f.text("sha256", _DIGEST)
    return DeployedFile(path, digest, f.integer("size"), f.integer("mtime_ns"), _noted_path(f, "link"))


def _path(f: Fields, key: str) -> str:
    path = f.text(key)
    if reason := unsafe_path(path):
        f.problem(key, reason)
    return path
