"""``hf://ORG/NAME[@REVISION]``: a repository on the Hub and one of its branches, tags or commits."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from model_cache.errors import UsageError
from model_cache.wheel.names import printable

__all__ = ["SCHEME", "HubAddress", "is_commit", "parse", "redact"]

SCHEME = "hf://"
DEFAULT_BRANCH = "main"

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REVISION = r"[A-Za-z0-9_](?:[A-Za-z0-9._/-]{0,198}[A-Za-z0-9_-])?"
_ADDRESS = re.compile(rf"hf://(?P<repo>{_PART}/{_PART})/?(?:@(?P<revision>{_REVISION}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN = re.compile(r"hf_[A-Za-z0-9]{4,}")


@dataclass(frozen=True)
class HubAddress:
    """repo: ``org/name``; revision: a branch, tag or commit, None for the default branch."""

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{SCHEME}{self.repo}@{self.revision}" if self.revision else f"{SCHEME}{self.repo}"

    @property
    def branch(self) -> str:
        """The revision, spelled out."""
        return self.revision or DEFAULT_BRANCH

    def at(self, revision: str) -> HubAddress:
        """The same repository at another revision."""
        return replace(self, revision=revision)


def is_commit(revision: str | None) -> bool:
    """Whether `revision` is a whole commit id, which always means the same files."""
    return bool(revision and _COMMIT.fullmatch(revision))


def parse(text: str) -> HubAddress:
    """Read an address. Raises UsageError when `text` is none."""
    match = _ADDRESS.fullmatch(text)
    if not match or ".." in text or "--" in match["repo"]:
        shown = redact(printable(text))
        raise UsageError(f"a place on the Hub is hf://ORG/NAME or hf://ORG/NAME@REVISION, not {shown!r:.120}")
    return HubAddress(match["repo"], match["revision"])


def redact(text: str, token: str | None = None) -> str:
    """`text` without `token` and without anything that looks like a token of the Hub."""
    if token:
        text = text.replace(token, "hf_***")
    return _TOKEN.sub("hf_***", text)
