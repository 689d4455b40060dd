"""`model-cache trust`: which keys this host trusts, and the few changes that are made by hand."""

from __future__ import annotations

import os
import re
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from model_cache.errors import ModelCacheError, NotFoundError, NotTrustedError, UsageError
from model_cache.origin import identity, keyring
from model_cache.origin.keyring import REVOKED, SUFFIX, Trusted, load_files, parse_key
from model_cache.origin.signature import short, timestamp
from model_cache.origin.trust import Trust
from model_cache.wheel import small_file

_ID = re.compile(r"[0-9a-f]{8,64}")

Answer = tuple[dict[str, Any], Sequence[str]]
"""For `--json`, and for people."""


def run(options: Namespace) -> Answer:
    """`model-cache trust list|add|add-identity|remove|revoke`."""
    action = {"list": _list, "add": _add, "add-identity": _add_identity, "remove": _remove, "revoke": _revoke}
    return action[options.action](options)


def _list(_: Namespace) -> Answer:
    trust = Trust.of_this_host()
    now = time.time()
    rows = []
    lines = [f"policy: {trust.policy}", f"places: {', '.join(keyring.places())}"]
    for key in trust.keyring.keys.values():
        state = _state(trust, key, now)
        rows.append({"key": key.id, "name": key.name, "expires": key.expires, "path": key.path, "status": state})
        until = f", until {key.expires}" if key.expires else ""
        lines.append(f"{state}: {key.id} {key.name}{until} ({key.path})")
    others = sorted(trust.keyring.revoked - trust.keyring.keys.keys())
    lines += [f"revoked: {key}" for key in others]
    return {"policy": trust.policy, "places": keyring.places(), "keys": rows, "revoked": others}, lines


def _state(trust: Trust, key: Trusted, now: float) -> str:
    return "revoked" if key.id in trust.keyring.revoked else "expired" if key.expired(now) else "trusted"


def _directory(options: Namespace) -> str:
    directory = keyring.SYSTEM if options.system else keyring.user_directory()
    if directory is None:
        raise UsageError("there is no home directory; use --system or XDG_CONFIG_HOME")
    return directory


def _read(path: str, limit: int) -> str:
    try:
        return small_file.read(path, limit).decode()
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path:.300}: cannot be read: {reason}") from None


def _check_expires(options: Namespace) -> None:
    try:
        timestamp(options.expires) if options.expires else None
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from None


def _check_revoked(key: str) -> None:
    if path := keyring.revoked_by(key):
        raise UsageError(f"{key} is revoked here, so trusting it changes nothing; take this id out of {path} first")


def _add(options: Namespace) -> Answer:
    text = _read(options.file, keyring.MAX_FILE_BYTES)
    try:
        key = parse_key(text, options.file)
    except NotTrustedError as error:  # nothing of this host is in doubt: the argument is wrong
        raise UsageError(error.message) from None
    _check_expires(options)
    _check_revoked(key.id)
    expires = options.expires or key.expires
    path = f"{_directory(options)}/{short(key.id)}{SUFFIX}"
    _write(path, keyring.key_file(key.public, key.name, expires))
    load_files([path])  # whether the place can be relied on
    lines = [f"trusted: {key.id} {key.name} ({path})", "  compare this id with the one that its owner tells you"]
    return {"key": key.id, "name": key.name, "expires": expires, "path": path}, lines


def _add_identity(options: Namespace) -> Answer:
    _check_expires(options)
    root = _read(options.root, identity.MAX_BYTES)
    try:
        text = identity.file_text(options.identity, options.issuer, root, options.name, options.expires)
    except (ValueError, RecursionError):
        raise UsageError(f"{options.root:.300}: is not a Sigstore trusted root (JSON)") from None
    found = identity.parse(text, options.root)
    _check_revoked(found.id)
    if found.can_check():
        found.check_root()
    path = f"{_directory(options)}/{short(found.id)}{identity.SUFFIX}"
    _write(path, text)
    load_files([path])  # whether the place can be relied on
    lines = [f"trusted: {found.id} {found.identity}, as {found.issuer} vouches ({path})"]
    if not found.can_check():
        lines.append(f"  {identity.missing().message}")
    data = {"key": found.id, "name": found.name, "expires": found.expires, "path": path}
    return {**data, "identity": found.identity, "issuer": found.issuer}, lines


def _remove(options: Namespace) -> Answer:
    before = Trust.of_this_host()
    keys = [key for key in _known(options) if key.path.startswith(f"{_directory(options)}/")]
    for key in keys:
        Path(key.path).unlink()
    if not keys:
        raise NotFoundError(f"no key {options.id} is in {_directory(options)}")
    lines = [f"no longer trusted: {key.id} ({key.path})" for key in keys]
    data, more = _left(before)
    return {"removed": [key.path for key in keys], **data}, [*lines, *more]


def _left(before: Trust) -> Answer:
    """Who is still trusted after a removal, and, if nobody is, what this host does with wheels from now on."""
    try:
        after = Trust.of_this_host()
    except NotTrustedError as error:  # MODEL_CACHE_TRUST names a place that has become empty
        return {"policy": None, "trusted": 0}, [f"  every wheel is refused now: {error.message}"]
    now = time.time()
    trusted = sum(_state(after, key, now) == "trusted" for key in after.keyring.keys.values())
    if trusted:
        return {"policy": after.policy, "trusted": trusted}, []
    fell = before.policy != after.policy
    policy = f"the policy falls from {before.policy} to {after.policy}" if fell else f"the policy is {after.policy}"
    meaning = "every wheel is refused" if after.policy == "require" else "unsigned wheels are accepted"
    line = f"  no trusted signer is left; {policy}: {meaning}"
    if fell:
        line += " (MODEL_CACHE_POLICY=require refuses them)"
    return {"policy": after.policy, "trusted": 0}, [line]


def _revoke(options: Namespace) -> Answer:
    if not _ID.fullmatch(options.id):
        raise UsageError(f"{options.id!r:.80} is no key id")
    ids = {options.id} if len(options.id) == 64 else {key.id for key in _known(options)}
    if len(ids) != 1:
        raise NotFoundError(f"{options.id}: {len(ids)} keys begin like that; give all 64 digits")
    path = f"{_directory(options)}/{REVOKED}"
    before = keyring.read(path) if os.path.lexists(path) else ""
    _write(path, before + ("\n" if before and not before.endswith("\n") else "") + f"{min(ids)}\n")
    load_files([_directory(options)])
    lines = [
        f"revoked: {min(ids)} ({path})",
        "  what that key has signed leaves a cache root at the next engine start there, or with `model-cache gc`",
    ]
    return {"revoked": min(ids), "path": path}, lines


def _known(options: Namespace) -> list[Trusted]:
    if not _ID.fullmatch(options.id):
        raise UsageError(f"{options.id!r:.80} is no key id (8 to 64 hexadecimal digits)")
    return [key for key in Trust.of_this_host().keyring.keys.values() if key.id.startswith(options.id)]


def _write(path: str, text: str) -> None:
    """Write a file of the trusted.d directory whole or not at all, with modes free of the umask."""
    place = Path(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        for parent in reversed([place.parent, *place.parent.parents]):
            if not parent.exists():
                parent.mkdir()
                parent.chmod(0o755)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(place)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ModelCacheError(f"{path}: cannot be written: {error.strerror}") from None
