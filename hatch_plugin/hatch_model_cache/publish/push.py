"""A wheel into a branch of a repository on the Hub: one revision holds one wheel, its manifest, signature and card."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from model_cache.errors import DamagedError, ModelCacheError, NotFoundError, UsageError
from model_cache.origin import signature
from model_cache.origin.trust import Origin
from model_cache.wheel import manifest as manifests
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import normalize
from model_cache.wheel.verify import verify

from . import card
from .hub import WHEEL_FILE, Digests, Hub, RemoteFile
from .hub_address import DEFAULT_BRANCH, HubAddress, is_commit
from .installing import pip_line, pull_line

__all__ = ["Local", "Pushed", "Release", "push", "release"]


@dataclass(frozen=True)
class Local:
    """A file to publish. content: its bytes, or where they are."""

    name: str
    content: bytes | Path
    digests: Digests

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Local:
        """A small file."""
        return cls(name, content, Digests.of(io.BytesIO(content)))

    def differs(self, remote: RemoteFile | None) -> str | None:
        """How the file that the Hub lists is another one; None when it is this one."""
        return f"{self.name} is missing" if remote is None else remote.differs(self.digests)


@dataclass(frozen=True)
class Release:
    """A verified wheel and what goes with it. files: wheel, manifest.json and, of a signed wheel, manifest.sig."""

    manifest: Manifest
    origin: Origin
    wheel: Local
    files: tuple[Local, ...]
    keys: tuple[str, ...]


def release(path: Path) -> Release:
    """Verify a wheel as this host's policy wants it, and take it apart into what is published.

    Raises DamagedError, NotTrustedError, NotFoundError, ModelCacheError when it cannot be read.
    """
    if not path.is_file():
        raise NotFoundError(f"{path}: there is no such file")
    if not WHEEL_FILE.fullmatch(path.name):
        raise UsageError(f"{path}: is not the file name of a wheel")
    with path.open("rb") as file:
        digests = Digests.of(file)
    with WheelPayload(str(path)) as payload:
        verified = verify(payload)
        small = {manifests.FILE_NAME: payload.read(manifests.FILE_NAME, manifests.MAX_BYTES)}
        keys: tuple[str, ...] = ()
        if verified.signatures_sha256:
            small[signature.FILE_NAME] = payload.read(signature.FILE_NAME, signature.MAX_BYTES)
            keys = tuple(one.key for one in signature.parse(small[signature.FILE_NAME]))
    wheel = Local(path.name, path, digests)
    files = (wheel, *(Local.of_bytes(name, data) for name, data in small.items()))
    return Release(verified.manifest, verified.origin, wheel, files, keys)


@dataclass(frozen=True)
class Pushed:
    """What a push did, or with `dry_run` would do.

    commit: the one that holds the wheel, to which install lines are pinned; None in a dry run that would make it.
    head: the branch's newest, which has the card as well. uploaded, deleted: names of files. created: what was made
    first: "repository", "branch", or "".
    """

    address: HubAddress
    commit: str | None
    head: str | None
    wheel: str
    size: int
    sha256: str
    uploaded: tuple[str, ...]
    deleted: tuple[str, ...]
    created: str
    install: tuple[str, ...]
    dry_run: bool


def push(
    path: Path, address: HubAddress, hub: Hub, *, create: bool = False, private: bool = False, dry_run: bool = False
) -> Pushed:
    """Publish the wheel at `path` on the branch that `address` names, and compare what the Hub then lists.

    A wheel that is there already is left as it is. create: make the repository (private: for its owner alone) or the
    branch when it is not there. Raises DamagedError for a wheel that is not intact or a Hub that lists something else,
    NotTrustedError, NotFoundError, UsageError, ModelCacheError.
    """
    if is_commit(address.revision):
        raise UsageError(f"{address}: a commit cannot be pushed to; give a branch, or none for {DEFAULT_BRANCH}")
    what = release(path)
    hub.require_online(address)
    if not hub.has_token:
        raise UsageError(f"{address}: pushing needs a token with write access: `hf auth login`, or set HF_TOKEN")
    return _Push(what, address.at(address.branch), hub).run(create=create, private=private, dry_run=dry_run)


class _Push:
    def __init__(self, what: Release, address: HubAddress, hub: Hub) -> None:
        self.what = what
        self.address = address
        self.hub = hub

    def run(self, *, create: bool, private: bool, dry_run: bool) -> Pushed:
        head, created = self._head(create=create, private=private, dry_run=dry_run)
        there = self.hub.files(self.address.at(head)) if head else {}
        uploads, deletes = self._changes(there)
        pinned = self._pinned(head, there) if head and not uploads and not deletes else None
        if dry_run:
            names = [file.name for file in uploads] + [card.FILE_NAME] * (pinned is None)
            return self._answer(pinned, head, names, deletes, created, dry_run=True)
        uploaded = [file.name for file in uploads]
        if uploads or deletes:
            assert head is not None
            pinned = head = self._commit(uploads, deletes, head)
        assert head is not None
        if pinned is None:
            pinned = head
        readme = self._card(pinned)
        if readme.differs(self.hub.files(self.address.at(head)).get(readme.name)):
            head = self._commit([readme], [], head, "Describe")
            uploaded.append(readme.name)
        self._compare(head, [*self.what.files, readme])
        return self._answer(pinned, head, uploaded, deletes, created, dry_run=False)

    def _head(self, *, create: bool, private: bool, dry_run: bool) -> tuple[str | None, str]:
        """The branch's newest commit, and what had to be made for there to be one."""
        with self.hub.told(self.address):
            exists = self.hub.api.repo_exists(self.address.repo)
        if not exists:
            if not create:
                self.hub.commit(self.address)  # which says why
                raise NotFoundError(f"{self.address}: there is no such repository")
            if dry_run:
                return None, "repository"
            with self.hub.told(self.address):
                self.hub.api.create_repo(self.address.repo, private=private or None, exist_ok=True)
        branches = self.hub.refs(self.address)
        if self.address.branch in branches:
            return branches[self.address.branch], "" if exists else "repository"
        if not create:
            raise NotFoundError(f"{self.address}: there is no such branch; --create makes it")
        if dry_run:
            return None, "branch"
        with self.hub.told(self.address):
            # from the first commit: a new branch has nothing of the other branches' wheels
            first = self.hub.api.list_repo_commits(self.address.repo)[-1].commit_id
            self.hub.api.create_branch(self.address.repo, branch=self.address.branch, revision=first)
        return first, "branch" if exists else "repository"

    def _changes(self, there: Mapping[str, RemoteFile]) -> tuple[list[Local], list[str]]:
        """What has to be uploaded, and which files of an older version of this wheel go."""
        ours = {file.name for file in self.what.files}
        old = [name for name in sorted(there) if name not in ours and (name.endswith(".whl") or name in _BESIDE)]
        name = normalize(self.what.manifest.name)
        others = [one for one in old if one.endswith(".whl") and normalize(one.partition("-")[0]) != name]
        if others:
            hardware = self.what.manifest.targets[0].name
            raise UsageError(
                f"{self.address}: holds another wheel, {others[0]}; a branch holds one: "
                f"give one of its own, for example {self.address.at(hardware)}"
            )
        return [file for file in self.what.files if file.differs(there.get(file.name))], old

    def _pinned(self, head: str, there: Mapping[str, RemoteFile]) -> str | None:
        """The commit that the branch's card is pinned to, when it is right as it stands."""
        remote = there.get(card.FILE_NAME)
        if remote is None or remote.size > card.MAX_BYTES:
            return None
        text = self.hub.read(self.address.at(head), card.FILE_NAME, card.MAX_BYTES, remote)
        commit = card.pinned_commit(text, self.address)
        if commit is None or self._card(commit).content != text:
            return None
        try:
            then = self.hub.files(self.address.at(commit))
        except NotFoundError:
            return None
        return None if any(file.differs(then.get(file.name)) for file in self.what.files) else commit

    def _card(self, commit: str) -> Local:
        wheel = self.what.wheel
        pinned = self.address.at(commit)
        text = card.render(
            self.what.manifest,
            wheel.name,
            wheel.digests.size,
            wheel.digests.sha256,
            pinned=pinned,
            url=self.hub.url(pinned, wheel.name),
            keys=self.what.keys,
        )
        return Local.of_bytes(card.FILE_NAME, text)

    def _commit(self, uploads: Sequence[Local], deletes: Sequence[str], parent: str, verb: str = "Publish") -> str:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        repo, branch = self.address.repo, self.address.branch
        with self.hub.told(self.address):
            additions = [CommitOperationAdd(file.name, file.content) for file in uploads]
            # A .gitignore in the repository makes huggingface_hub leave files out of a commit without a word; the Hub
            # asks it only when the upload brings no rules of its own.
            self.hub.api.preupload_lfs_files(
                repo, additions, revision=branch, free_memory=False, gitignore_content="# nothing is ignored\n"
            )
            made = self.hub.api.create_commit(
                repo,
                [*additions, *(CommitOperationDelete(name) for name in deletes)],
                commit_message=f"{verb} {self.what.manifest.name} {self.what.manifest.version}",
                revision=branch,
                parent_commit=parent,
            ).oid
        if not is_commit(made):
            raise ModelCacheError(f"{self.address}: the Hub names no commit for what was uploaded")
        return made

    def _compare(self, head: str, files: Sequence[Local]) -> None:
        """Raises DamagedError when the Hub lists anything else than what was pushed."""
        there = self.hub.files(self.address.at(head))
        problems = [problem for file in files if (problem := file.differs(there.get(file.name)))]
        wheels = {name for name in there if name.endswith(".whl")} - {self.what.wheel.name}
        problems += [f"{name} is there too" for name in sorted(wheels)]
        if problems:
            raise DamagedError(f"{self.address.at(head)}: the Hub does not hold what was pushed", problems)

    def _answer(
        self,
        pinned: str | None,
        head: str | None,
        uploaded: Sequence[str],
        deleted: Sequence[str],
        created: str,
        *,
        dry_run: bool,
    ) -> Pushed:
        wheel = self.what.wheel
        install: tuple[str, ...] = ()
        if pinned:
            at = self.address.at(pinned)
            line = pip_line(self.what.manifest.name, self.hub.url(at, wheel.name), wheel.digests.sha256)
            install = (pull_line(at), line)
        files, size, sha256 = (tuple(uploaded), tuple(deleted)), wheel.digests.size, wheel.digests.sha256
        return Pushed(self.address, pinned, head, wheel.name, size, sha256, *files, created, install, dry_run)


_BESIDE = frozenset({manifests.FILE_NAME, signature.FILE_NAME})
