"""Signing: keys, and the signature that is put into a finished wheel.

A signed wheel is the old one with one more file and a longer RECORD: all other members are copied as they are packed,
so the same wheel, key and times always give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from model_cache.errors import DamagedError, ModelCacheError, UsageError
from model_cache.origin import keyring, signature
from model_cache.origin.ed25519 import PrivateKey
from model_cache.origin.keyring import Keyring, Trusted, TrustedKey
from model_cache.origin.signature import MAX_FILES, MAX_SIGNATURES, Signature, timestamp
from model_cache.origin.trust import Trust
from model_cache.wheel import small_file
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.manifest import FILE_NAME, MAX_BYTES
from model_cache.wheel.names import printable
from model_cache.wheel.verify import verify

__all__ = ["KEY_VARIABLE", "Signed", "generate", "load_key", "sign_wheel", "time_of_build"]

KEY_VARIABLE = "MODEL_CACHE_SIGNING_KEY"
"""Environment variable with the absolute path of the private key that the build hook signs with."""

_MAX_KEY_BYTES = 64 * 1024
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class Signed:
    """A wheel that was signed. keys: ids of all keys whose signatures it now holds."""

    path: Path
    keys: tuple[str, ...]
    changed: bool


def generate(path: Path, *, name: str = "", expires: str | None = None) -> tuple[Path, Path, str]:
    """Make a key pair: PATH.pem (mode 0600, unencrypted) and PATH.pub; returns both and the key's id.

    Never replaces a file. Raises UsageError, NotTrustedError without `cryptography`.
    """
    _check_times(None, expires)
    if path.name in ("", ".."):
        raise UsageError(f"{str(path)!r} names no key: give a path that ends in the key's name, like keys/ci")
    shown = name or path.name
    if not shown.strip() or printable(shown) != shown or len(shown.splitlines()) != 1 or _SURROGATE.search(shown):
        raise UsageError(f"a key's name is one line of text, not {shown!r:.80}; give one with --name")
    key = PrivateKey.generate()
    private, public = path.with_name(f"{path.name}.pem"), path.with_name(f"{path.name}.pub")
    for file in (private, public):
        if small_file.mode(file) or file.is_symlink():
            raise UsageError(f"{file} is there already; keys are never replaced")
    _write_new(private, key.pem(), 0o600)
    try:
        _write_new(public, keyring.key_file(key.public, shown, expires).encode(), 0o644)
    except BaseException:
        private.unlink()  # nobody could ever trust what it signs
        raise
    return private, public, key.id


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise ModelCacheError(f"{path}: cannot be written: {error.strerror}") from None


def load_key(path: str) -> PrivateKey:
    """Read a private key that nobody else can read. Raises UsageError with what to do, NotTrustedError."""
    try:
        # A link is followed: secrets are mounted as links.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"the signing key {path} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"the signing key {path} is not a regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"the signing key {path} belongs to uid {status.st_uid}, neither root nor this user")
        data = os.read(descriptor, _MAX_KEY_BYTES)
        if b"-----BEGIN PUBLIC KEY-----" in data:
            raise UsageError(f"{path} is a public key, which signs nothing: give the private one that belongs to it")
        if mode & 0o077:
            raise UsageError(f"the signing key {path} has mode {mode:04o}, so others can use it; chmod 600 it")
    finally:
        os.close(descriptor)
    return PrivateKey.from_pem(data, f"the signing key {path}")


def time_of_build(environ: Mapping[str, str] = os.environ) -> str | None:
    """SOURCE_DATE_EPOCH as signatures write times; None when it is not set: a clock would change every wheel."""
    from datetime import UTC, datetime

    epoch = environ.get("SOURCE_DATE_EPOCH", "")
    if not epoch:
        return None
    try:
        return datetime.fromtimestamp(int(epoch), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"SOURCE_DATE_EPOCH must be a number of seconds, not {epoch!r:.40}") from None


def sign_wheel(path: Path, key: PrivateKey, *, created: str | None = None, expires: str | None = None) -> Signed:
    """Verify the wheel at `path`, then replace it, in one step, by the same wheel with a signature by `key`.

    Signatures by other keys stay (rotation), one by the same key is replaced. Raises DamagedError for a wheel that is
    not intact, UsageError for wrong times, ModelCacheError when it cannot be written.
    """
    _check_times(created, expires)
    wheel = Signable.read(path)
    unsigned = Signature(key=key.id, dist_info=wheel.dist_info, created=created, expires=expires)
    ours = replace(unsigned, value=key.sign(unsigned.message(wheel.manifest)))
    return wheel.put(ours, TrustedKey(key.id, key.public, "", None, ""))


@dataclass(frozen=True)
class Signable:
    """A verified wheel that is to be signed.

    manifest: its exact bytes; dist_info: name → sha256 of the small files that a signature covers; before: the bytes of
    its signature file, empty without one.
    """

    path: Path
    package: str
    manifest: bytes
    dist_info: Mapping[str, str]
    before: bytes

    @classmethod
    def read(cls, path: Path) -> Signable:
        """Verify the wheel at `path`. Raises DamagedError, ModelCacheError."""
        with WheelPayload(str(path)) as payload:
            verify(payload, trust=Trust("off", Keyring()))
            names = [name for name in payload.dist_info_files() if name != "RECORD"]
            if len(names) > MAX_FILES:
                raise DamagedError(f"{payload.label}: its dist-info directory holds more than {MAX_FILES} files")
            signed = signature.FILE_NAME in payload.files()
            return cls(
                path=path,
                package=payload.package,
                manifest=payload.read(FILE_NAME, MAX_BYTES),
                dist_info={name: hashlib.sha256(payload.metadata(name)).hexdigest() for name in names},
                before=payload.read(signature.FILE_NAME, signature.MAX_BYTES) if signed else b"",
            )

    def put(self, ours: Signature, trusted: Trusted) -> Signed:
        """Replace the wheel by one with `ours`, which must be by `trusted`, among its signatures."""
        others = [one for one in (signature.parse(self.before) if self.before else ()) if one.key != ours.key]
        if len(others) >= MAX_SIGNATURES:
            raise UsageError(f"{self.path.name}: holds {MAX_SIGNATURES} signatures already")
        data = signature.to_bytes([*others, ours])
        keys = tuple(sorted(one.key for one in (*others, ours)))
        if data == self.before:
            return Signed(self.path, keys, changed=False)
        if len(data) > signature.MAX_BYTES:
            raise UsageError(f"{self.path.name}: its signatures would take more than {signature.MAX_BYTES} bytes")
        _replace(self.path, f"{self.package}/{signature.FILE_NAME}", data, trusted)
        return Signed(self.path, keys, changed=True)


def _check_times(created: str | None, expires: str | None) -> None:
    for option, text in (("--created", created), ("--expires", expires)):
        if text is not None:
            try:
                timestamp(text)
            except ValueError as error:
                raise UsageError(f"{option}: {error}") from None
    if created and expires and timestamp(expires) <= timestamp(created):
        raise UsageError("--expires is not after --created")


def _replace(path: Path, member: str, data: bytes, trusted: Trusted) -> None:
    """Write the new wheel beside the old one under the same name, look at it, and rename it over the old one."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".model-cache-sign-", dir=path.parent))
    except OSError as error:
        raise ModelCacheError(f"{path}: cannot be signed in place: {error.strerror or error}") from None
    try:
        new = folder / path.name
        with path.open("rb") as source, new.open("wb") as destination:
            _copy(source, destination, member, data)
            os.fchmod(destination.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
            destination.flush()
            os.fsync(destination.fileno())
        with WheelPayload(str(new)) as payload:
            # A key that is short-lived by design may be over already; everything else must be right.
            verify(payload, trust=Trust("prefer", Keyring({trusted.id: trusted})))
        new.rename(path)
    except OSError as error:
        raise ModelCacheError(f"{path}: cannot be signed in place: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def _copy(source: IO[bytes], destination: IO[bytes], member: str, data: bytes) -> None:
    """The archive with `member` added or replaced. WheelPayload has made sure that members follow without a gap."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(destination, "w") as new:
        infos = sorted(old.infolist(), key=lambda info: info.header_offset)
        ends = {
            info.filename: after
            for info, after in zip(infos, [*(i.header_offset for i in infos[1:]), old.start_dir], strict=True)
        }
        record = next(i for i in infos if i.filename.endswith(".dist-info/RECORD"))
        kept = [info for info in infos if info.filename not in (member, record.filename)]
        package = member.partition("/")[0]
        like = next(info for info in kept if info.filename == f"{package}/{FILE_NAME}")
        for info in kept:
            if info.filename.startswith(f"{package}/"):
                _copy_member(source, new, info, ends[info.filename])
        _write_member(new, member, data, like, zipfile.ZIP_STORED)
        for info in kept:
            if not info.filename.startswith(f"{package}/"):
                _copy_member(source, new, info, ends[info.filename])
        text = _record(old.read(record).decode(), record.filename, member, data)
        _write_member(new, record.filename, text.encode(), record, record.compress_type)


def _copy_member(source: IO[bytes], new: zipfile.ZipFile, info: zipfile.ZipInfo, end: int) -> None:
    """Copy local header and packed bytes as they are: unpacking and packing again could give other bytes."""
    start = info.header_offset
    source.seek(start)
    assert new.fp is not None
    info.header_offset = new.fp.tell()
    left = end - start
    while left:
        piece = source.read(min(left, 1024 * 1024))
        if not piece:
            raise OSError("the wheel became shorter while it was read")
        new.fp.write(piece)
        left -= len(piece)
    new.filelist.append(info)
    new.NameToInfo[info.filename] = info
    new.start_dir = new.fp.tell()


def _write_member(new: zipfile.ZipFile, name: str, data: bytes, like: zipfile.ZipInfo, method: int) -> None:
    info = zipfile.ZipInfo(name, like.date_time)
    info.compress_type = method
    info.create_system = like.create_system
    info.external_attr = like.external_attr
    new.writestr(info, data)


def _record(text: str, record: str, member: str, data: bytes) -> str:
    """RECORD with the member's line before its own."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    end = "\r\n" if text.endswith("\r\n") else "\n"
    lines = [line for line in text.splitlines() if line and line.partition(",")[0] not in (member, record)]
    return "".join(f"{line}{end}" for line in [*lines, f"{member},sha256={digest},{len(data)}", f"{record},,"])
