"""What looks like a secret or like the builder's own place. Kinds are told, values never."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from mmap import mmap

_NAME = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|SECRET_?KEY|CREDENTIAL)S?(_|$)",
    re.IGNORECASE,
)
_NOT_A_SECRET = re.compile(r"_(PATH|FILE|DIR)$", re.IGNORECASE)

_KINDS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        # The left bounds keep "ask-for-something-very-long" and "my_hf_…" identifiers out.
        ("a Hugging Face token", rb"(?<![A-Za-z0-9_])hf_[A-Za-z0-9]{30,}"),
        ("an API key (sk-…)", rb"(?<![A-Za-z0-9_-])sk-[A-Za-z0-9_-]{20,}"),
        ("an AWS access key id", rb"(?<![A-Za-z0-9])(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9])"),
        ("a GitHub token", rb"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50,})"),
        ("a private key", rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"),
    )
)

MIN_VALUE = 8
"""Shorter values of secret-looking variables are not searched: they would be found everywhere."""


def secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret, as far as a name can tell."""
    return bool(_NAME.search(name)) and not _NOT_A_SECRET.search(name)


def secret_kind(content: bytes | mmap) -> str | None:
    """The kind of the first well-known secret in `content`, in words; None when there is none."""
    for kind, pattern in _KINDS:
        if pattern.search(content):
            return kind
    return None


@dataclass(frozen=True)
class Watch:
    """Byte strings of the machine that builds which no wheel may hold."""

    values: tuple[tuple[str, bytes], ...]
    """(description, bytes to search)."""

    @classmethod
    def of_this_host(cls, environ: Mapping[str, str] | None = None) -> Watch:
        """The home directory and the values of environment variables that are named like secrets."""
        environ = os.environ if environ is None else environ
        values = []
        home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
        home = home.rstrip("/")
        if home:
            # With the slash: "/root" alone is in every "/rootfs".
            values.append((f"the builder's home directory ({home})", os.fsencode(home + "/")))
        for name, value in sorted(environ.items()):
            encoded = os.fsencode(value)
            if secret_name(name) and len(encoded) >= MIN_VALUE:
                values.append((f"the value of the environment variable {name}", encoded))
        return cls(tuple(values))

    def leaks(self, content: bytes | mmap, *, text: bool) -> Iterator[str]:
        """What must not be in `content` and is, in words.

        text: search well-known forms of secrets too; among random bytes they would come up by chance.
        """
        for description, value in self.values:
            if content.find(value) >= 0:
                yield description
        kind = secret_kind(content) if text else None
        if kind:
            yield kind
