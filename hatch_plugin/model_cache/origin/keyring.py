"""The keys this host trusts: where they lie, who may have written them, which are revoked or over.

They are never taken from a wheel. A place that somebody else could have written to is refused, not passed over:
passing it over would turn "signatures are required" into "none are known".
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from model_cache.errors import NotFoundError, NotTrustedError
from model_cache.origin import ed25519, identity
from model_cache.origin.identity import TrustedIdentity
from model_cache.origin.signature import ED25519, short, timestamp
from model_cache.wheel.names import printable

VARIABLE = "MODEL_CACHE_TRUST"
"""Environment variable with files and directories, separated as in PATH."""

SYSTEM = "/etc/model-cache/trusted.d"
SUFFIX = ".pub"
SUFFIXES = (SUFFIX, identity.SUFFIX)
REVOKED = "revoked"
"""A file in a trusted.d directory: one key id a line, `#` starts a comment."""

MAX_FILE_BYTES = 64 * 1024
MAX_FILES = 1000

_KEY = re.compile(r"[0-9a-f]{64}")
_HEADER = re.compile(r"# *(name|expires): *(\S(?:.*\S)?) *")


@dataclass(frozen=True)
class TrustedKey:
    """A public key. expires: UTC time as signatures write it, from which on it counts no more; path: its file."""

    id: str
    public: bytes
    name: str
    expires: str | None
    path: str

    algorithm = ED25519
    package = "cryptography"

    def expired(self, now: float) -> bool:
        """Whether it is over at `now` (seconds since the epoch)."""
        return self.expires is not None and timestamp(self.expires) <= now

    def can_check(self) -> bool:
        """Whether the package that checks its signatures is installed here."""
        return ed25519.available()

    def is_valid(self, value: bytes, message: bytes) -> bool:
        """Whether `value` is this key's signature over `message`. Raises NotTrustedError without `cryptography`."""
        return ed25519.is_valid(self.public, value, message)


Trusted = TrustedKey | TrustedIdentity


@dataclass(frozen=True)
class Keyring:
    """What was found. revoked: ids whose signatures count nowhere, whatever file still holds the key."""

    keys: Mapping[str, Trusted] = field(default_factory=dict)
    revoked: frozenset[str] = frozenset()


def user_directory(environ: Mapping[str, str] = os.environ) -> str | None:
    """XDG_CONFIG_HOME/model-cache/trusted.d, else ~/.config/…; None where there is no home."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):
        home = os.path.expanduser("~")  # noqa: PTH111
        if home in ("~", "/", ""):
            return None
        base = f"{home}/.config"
    return f"{base}/model-cache/trusted.d"


def places(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Every place that is asked, in order: the system's, the user's, those in MODEL_CACHE_TRUST."""
    user = user_directory(environ)
    named = environ.get(VARIABLE, "").split(os.pathsep)
    return [SYSTEM, *([user] if user else []), *(path for path in named if path)]


def load(environ: Mapping[str, str] = os.environ) -> Keyring:
    """Read all places. Raises NotTrustedError for the first that cannot be relied on."""
    named = {path for path in environ.get(VARIABLE, "").split(os.pathsep) if path}
    for path in sorted(named):
        if not path.startswith("/"):
            raise NotTrustedError(f"{VARIABLE}: {printable(path)} is not absolute")
    return _collected(places(environ), needed=named)


def load_files(paths: Iterable[str]) -> Keyring:
    """Exactly these files and directories (`--trust`).

    Raises NotFoundError when one is not there, NotTrustedError when it cannot be relied on.
    """
    found = [os.path.abspath(path) for path in paths]  # noqa: PTH100
    for path in found:
        if not os.path.lexists(path):
            raise NotFoundError(f"{printable(path)}: there are no trusted keys: no such file")
    return _collected(found, needed=set(found))


def revoked_by(key: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The path of the file in which this host revokes the key id `key`, None if it does not.

    Only such files are read: whoever is about to add the first key, or to mend a broken one, has no whole keyring.
    Raises NotTrustedError when a place cannot be relied on.
    """
    for place in dict.fromkeys(places(environ)):
        for path in _files(place, needed=False):
            if path.rpartition("/")[2] == REVOKED and key in _revoked(read(path), path):
                return path
    return None


def _collected(paths: Iterable[str], needed: set[str]) -> Keyring:
    keys: dict[str, Trusted] = {}
    revoked: set[str] = set()
    for place in dict.fromkeys(paths):
        for path in _files(place, needed=place in needed):
            text = read(path, identity.MAX_BYTES if path.endswith(identity.SUFFIX) else MAX_FILE_BYTES)
            if path.rpartition("/")[2] == REVOKED:
                revoked |= _revoked(text, path)
            else:
                key = parse(text, path)
                known = keys.setdefault(key.id, key)
                # Two files of one key: the stricter one counts.
                if key.expires and (not known.expires or key.expires < known.expires):
                    keys[key.id] = key
    return Keyring(keys, frozenset(revoked))


def _files(place: str, *, needed: bool) -> list[str]:
    """The files of a place, sorted; a missing place that nobody named is empty."""
    try:
        status = os.stat(place)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        if needed:
            raise NotTrustedError(f"{printable(place)}: there are no trusted keys: no such file") from None
        return []
    except OSError as error:
        raise _unreadable(place, error) from None
    if not stat.S_ISDIR(status.st_mode):
        _check_chain(place)
        return [place]
    _check_chain(place)
    try:
        names = sorted(n for n in os.listdir(place) if n == REVOKED or n.endswith(SUFFIXES))
    except OSError as error:
        raise _unreadable(place, error) from None
    if needed and not names:
        raise NotTrustedError(f"{printable(place)}: there are no trusted keys: no file ends in {' or '.join(SUFFIXES)}")
    if len(names) > MAX_FILES:
        raise NotTrustedError(f"{printable(place)}: holds more than {MAX_FILES} files")
    for name in names:
        _check_chain(f"{place}/{name}")
    return [f"{place}/{name}" for name in names]


def _check_chain(path: str) -> None:
    """Refuse a path that another user could have written, or could exchange, at any step from the root on.

    Both the path as given and what it leads to through links are judged.
    """
    for end in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):  # noqa: PTH100
        for step in (Path(end), *Path(end).parents):
            try:
                status = step.lstat()
            except OSError as error:
                raise _unreadable(str(step), error) from None
            if reason := _unsafe(status, leaf=str(step) == end):
                raise NotTrustedError(
                    f"{printable(path)}: is no place for trusted keys: {printable(str(step))} {reason}"
                )


def _unsafe(status: os.stat_result, *, leaf: bool) -> str | None:
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {status.st_uid}; it must belong to root or to the user that runs this"
    if stat.S_ISLNK(status.st_mode):  # a link's mode means nothing
        return None
    sticky = status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode) and not leaf
    if status.st_mode & 0o022 and not sticky:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}, so others can write to it; chmod go-w"
    return None


def read(path: str, limit: int = MAX_FILE_BYTES) -> str:
    """A small text file; limit: bytes. Raises NotTrustedError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise NotTrustedError(f"{printable(path)}: is not a regular file")
            if reason := _unsafe(status, leaf=True):  # once more, of what was really opened
                raise NotTrustedError(f"{printable(path)}: {reason}")
            data = os.read(descriptor, limit + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(data) > limit:
        raise NotTrustedError(f"{printable(path)}: is larger than {limit} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise NotTrustedError(f"{printable(path)}: is no text file") from None


def _unreadable(path: str, error: OSError) -> NotTrustedError:
    return NotTrustedError(f"{printable(path)}: trusted keys cannot be read: {error.strerror}")


def parse(text: str, path: str) -> Trusted:
    """The file of a key, or of an identity, which its name tells. Raises NotTrustedError."""
    return identity.parse(text, path) if path.endswith(identity.SUFFIX) else parse_key(text, path)


def parse_key(text: str, path: str) -> TrustedKey:
    """A key file's text: `# name: …` and `# expires: …` lines, then one public key in PEM form.

    Raises NotTrustedError; path: names it in the error, and the key, if no line does.
    """
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("#")]
    pem = "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
    values = dict(_headers(head, path))
    try:
        public = ed25519.public_key(pem)
        if "expires" in values:
            timestamp(values["expires"])
    except ValueError as error:
        raise NotTrustedError(f"{printable(path)}: {error}") from None
    name = values.get("name", path.rpartition("/")[2].removesuffix(SUFFIX))
    return TrustedKey(ed25519.key_id(public), public, printable(name)[:80], values.get("expires"), path)


def _headers(lines: list[str], path: str) -> Iterator[tuple[str, str]]:
    for line in lines:
        if match := _HEADER.fullmatch(line):
            yield match[1], match[2]
        elif re.match(r"# *expire", line, re.IGNORECASE):
            # A typing error here would make a key last forever.
            raise NotTrustedError(
                f"{printable(path)}: {printable(line)!r:.60} is not `# expires: 2027-01-31T00:00:00Z`"
            )


def key_file(public: bytes, name: str = "", expires: str | None = None) -> str:
    """The text of a key file, as `parse_key` reads it."""
    head = [*([f"# name: {name}"] if name else []), *([f"# expires: {expires}"] if expires else [])]
    return "".join(f"{line}\n" for line in head) + ed25519.public_pem(public)


def _revoked(text: str, path: str) -> set[str]:
    found = set()
    for line in text.splitlines():
        value = line.partition("#")[0].strip()
        if value and not _KEY.fullmatch(value):
            raise NotTrustedError(f"{printable(path)}: {value!r:.80} is no key id (64 hexadecimal digits)")
        if value:
            found.add(value)
    return found


def label(key: Trusted) -> str:
    """How messages name a key."""
    return f"{short(key.id)} ({key.name})" if key.name else short(key.id)
