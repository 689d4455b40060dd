"""The Hub, asked through huggingface_hub (extra `hub`): every failure is one line, and no token is ever in it."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from model_cache.errors import DamagedError, ModelCacheError, NotFoundError, UsageError
from model_cache.wheel import small_file
from model_cache.wheel.names import printable, unsafe_path

from .hub_address import HubAddress, is_commit, redact

__all__ = ["WHEEL_FILE", "Digests", "Hub", "RemoteFile"]

MAX_FILES = 10_000
MAX_REFS = 500
WHEEL_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
"""What a wheel's file name may be made of: nothing that a shell, a URL or Markdown would take for its own."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Digests:
    """What the Hub knows a file by: its size in bytes, its sha256, and git's name of it (`oid`), in hex."""

    size: int
    sha256: str
    oid: str

    @classmethod
    def of(cls, file: IO[bytes]) -> Digests:
        """Of a seekable file, from its start to its end."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while piece := file.read(1024 * 1024):
            sha256.update(piece)
            sha1.update(piece)
        return cls(size, sha256.hexdigest(), sha1.hexdigest())


@dataclass(frozen=True)
class RemoteFile:
    """A file as the Hub lists it. size in bytes; sha256: of large files (LFS, Xet), else None; oid: git's name."""

    name: str
    size: int
    sha256: str | None
    oid: str

    def differs(self, here: Digests) -> str | None:
        """How a file here is another one than this; None when it is the same."""
        if self.size != here.size:
            return f"{self.name} has {self.size} bytes on the Hub, {here.size} here"
        # what the Hub lists as `oid` of a large file is that of the pointer to it
        if (self.sha256 or self.oid) != (here.sha256 if self.sha256 else here.oid):
            return f"{self.name} has another content on the Hub than here"
        return None


class Hub:
    """The Hub that ``HF_ENDPOINT`` names, or with ``HF_HUB_OFFLINE=1`` the local cache alone.

    Attributes:
        endpoint: its address, without a slash at the end.
        offline: whether only the local cache may be asked.
        api: huggingface_hub's own client, for what has no method here.
    """

    def __init__(self, *, progress: bool = False) -> None:
        """progress: whether huggingface_hub may draw its bars. Raises UsageError without huggingface_hub."""
        try:
            from huggingface_hub import HfApi, constants, get_token
            from huggingface_hub.utils import disable_progress_bars, logging  # type: ignore[attr-defined]
        except ImportError:
            raise UsageError(
                "the Hub needs the Python package huggingface_hub: pip install 'hatch-model-cache[hub]'"
            ) from None
        if not progress:
            disable_progress_bars()
        logging.set_verbosity_error()  # type: ignore[no-untyped-call] # its warnings are about what is told here in one line
        self.api = HfApi(library_name="hatch-model-cache")
        self.endpoint: str = self.api.endpoint
        self.offline: bool = constants.HF_HUB_OFFLINE
        self.cache = Path(constants.HF_HUB_CACHE)
        self._token = get_token()

    @property
    def has_token(self) -> bool:
        """Whether there is a token to show to the Hub."""
        return self._token is not None

    @contextmanager
    def told(self, address: HubAddress) -> Iterator[None]:
        """Turn whatever huggingface_hub raises within into one line about `address`."""
        try:
            yield
        except ModelCacheError:
            raise
        except Exception as error:  # many kinds: network, HTTP, gated, validation, answers of another form
            raise self._in_words(address, error) from None

    def _in_words(self, address: HubAddress, error: Exception) -> ModelCacheError:
        from huggingface_hub import errors

        status = getattr(getattr(error, "response", None), "status_code", None)
        page = f"{self.endpoint}/{address.repo}"
        if isinstance(error, errors.GatedRepoError):
            whose = "the account of this token" if self.has_token else "an account, and give its token (HF_TOKEN)"
            return ModelCacheError(f"{address}: the repository is gated: ask for access on {page} with {whose}")
        if isinstance(error, errors.RepositoryNotFoundError):
            why = "this token may not see it" if self.has_token else "it is private and there is no token (HF_TOKEN)"
            return NotFoundError(f"{address}: there is no such repository on {self.endpoint}, or {why}")
        if isinstance(error, errors.RevisionNotFoundError):
            return NotFoundError(f"{address}: the repository has no branch, tag or commit {address.branch}")
        if isinstance(error, errors.LocalEntryNotFoundError):  # not in the cache, and the Hub gives no answer
            if self.offline:
                return NotFoundError(f"{address}: is not in the local Hub cache, and HF_HUB_OFFLINE is set")
        elif isinstance(error, errors.EntryNotFoundError):
            return NotFoundError(f"{address}: the file that was asked for is not there")
        if isinstance(error, errors.HFValidationError):
            return UsageError(f"{address}: is not a name that the Hub accepts: {self._first_line(error)}")
        if isinstance(error, errors.OfflineModeIsEnabled):
            return UsageError(f"{address}: the Hub must be asked for this, and HF_HUB_OFFLINE is set")
        if status in (401, 403):
            why = "does not accept the token, or it may not do this" if self.has_token else "wants a token (HF_TOKEN)"
            return ModelCacheError(f"{address}: the Hub {why}")
        if status in (409, 412):
            return ModelCacheError(f"{address}: was changed by somebody else meanwhile; run the command again")
        return ModelCacheError(f"{address}: the Hub could not be asked: {self._first_line(error)}")

    def _first_line(self, error: Exception) -> str:
        line = (str(error).strip() or repr(error)).splitlines()[0]
        line = re.sub(r"\?[^\s'\"]+", "?…", line)  # a URL may carry a signature that opens it
        return f"{redact(printable(line), self._token):.300}"

    def require_online(self, address: HubAddress) -> None:
        """Raises UsageError with ``HF_HUB_OFFLINE=1``."""
        if self.offline:
            raise UsageError(f"{address}: the Hub must be asked for this, and HF_HUB_OFFLINE is set")

    def commit(self, address: HubAddress) -> str:
        """The commit that `address` means now; offline, what it meant when it was last asked for.

        Raises NotFoundError when there is no such repository or revision, or offline none is known.
        """
        if address.revision and is_commit(address.revision):
            return address.revision
        if self.offline:
            return self._remembered(address)
        with self.told(address):
            found = self.api.repo_info(address.repo, revision=address.branch).sha
        if not is_commit(found):
            raise ModelCacheError(f"{address}: the Hub names no commit for {address.branch}")
        assert found is not None
        return found

    def _remembered(self, address: HubAddress) -> str:
        folder = self._folder(address)
        try:
            commit = small_file.read(folder / "refs" / address.branch, 100).decode("ascii", "replace").strip()
        except OSError:
            commit = ""
        if is_commit(commit):
            return commit
        known = self.cached(address)
        hint = f"give one of these commits: {', '.join(known[:5])}" if known else "nothing of it is in the cache"
        raise NotFoundError(
            f"{address}: offline, the local Hub cache does not say which commit {address.branch} is; {hint}"
        )

    def cached(self, address: HubAddress) -> list[str]:
        """The commits of a repository of which the local cache has anything."""
        snapshots = self._folder(address) / "snapshots"
        return sorted(path.name for path in snapshots.glob("*") if is_commit(path.name))

    def _folder(self, address: HubAddress) -> Path:
        """Where the cache keeps a model repository."""
        return self.cache / f"models--{address.repo.replace('/', '--')}"

    def remember(self, address: HubAddress, name: str) -> None:
        """Have the cache note which commit the branch of `address` is, so that it can be asked for by name offline.

        huggingface_hub notes that only for a file that is asked for by branch: not for a download by commit.
        """
        if not is_commit(address.branch):
            with self.told(address):
                self.api.hf_hub_download(address.repo, name, revision=address.branch)

    def is_open(self, address: HubAddress) -> bool:
        """Whether anybody may read the repository, without a token."""
        with self.told(address):
            info = self.api.repo_info(address.repo)
        return not getattr(info, "private", True) and not getattr(info, "gated", True)

    def files(self, address: HubAddress) -> dict[str, RemoteFile]:
        """The files at the top of a revision: name → file. Folders are left out."""
        with self.told(address):
            listed = self.api.list_repo_tree(address.repo, revision=address.branch)
            entries = list(itertools.islice(listed, MAX_FILES + 1))
        if len(entries) > MAX_FILES:
            raise DamagedError(f"{address}: holds more than {MAX_FILES} files")
        found = [_remote_file(entry) for entry in entries if hasattr(entry, "blob_id")]
        wrong = [file.name for file in found if unsafe_path(file.name) or "/" in file.name or file.size < 0]
        if wrong:
            raise DamagedError(f"{address}: lists files that cannot be", [repr(printable(name)) for name in wrong[:10]])
        return {file.name: file for file in found}

    def cached_files(self, address: HubAddress) -> dict[str, Path]:
        """What the local cache has at the top of a commit: name → path."""
        snapshot = self._folder(address) / "snapshots" / address.branch
        return {path.name: path for path in sorted(snapshot.glob("*")) if path.is_file()}

    def url(self, address: HubAddress, name: str) -> str:
        """Where a file of a revision is downloaded from."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(address.repo, name, revision=address.branch, endpoint=self.endpoint)

    def download(self, address: HubAddress, name: str, *, again: bool = False) -> Path:
        """A file of a commit, in the local cache. again: download it also when it is there.

        A connection that breaks is taken up again by huggingface_hub; what a killed download left is not used.
        """
        with self.told(address):
            revision = address.branch
            return Path(self.api.hf_hub_download(address.repo, name, revision=revision, force_download=again))

    def read(self, address: HubAddress, name: str, limit: int, listed: RemoteFile | None = None) -> bytes:
        """The bytes of a small file. listed: as the Hub lists it. Raises DamagedError above `limit` bytes."""
        if listed and listed.size > limit:
            raise DamagedError(f"{address}: {name} is larger than {limit} bytes")
        path = self.download(address, name)
        try:
            return small_file.read(path, limit)
        except OSError as error:
            raise DamagedError(f"{address}: {name} cannot be used: {error.strerror}") from None

    def refs(self, address: HubAddress) -> Mapping[str, str]:
        """Branches, then tags, of a repository: name → commit."""
        with self.told(address):
            refs = self.api.list_repo_refs(address.repo)
            found = {ref.name: ref.target_commit for ref in [*refs.branches, *refs.tags]}
        if len(found) > MAX_REFS:
            raise DamagedError(f"{address}: has more than {MAX_REFS} branches and tags; give one: {address}@NAME")
        return {name: commit for name, commit in found.items() if is_commit(commit)}


def _remote_file(entry: Any) -> RemoteFile:
    sha256 = entry.lfs.sha256 if entry.lfs else None
    well_formed = isinstance(sha256, str) and _SHA256.fullmatch(sha256)
    return RemoteFile(str(entry.path), int(entry.size), sha256 if well_formed else None, str(entry.blob_id))
