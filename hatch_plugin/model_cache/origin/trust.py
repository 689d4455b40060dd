"""The one decision about a wheel's origin: who has signed the manifest's exact bytes, and is that enough here?

It is taken before the manifest is parsed, by `verify`, and so by every command, by deploy and by the plug-in alike.
A hash in a wheel proves that the wheel is intact; only a signature by a key that this host trusts says from whom it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from model_cache.errors import NotTrustedError, UsageError
from model_cache.origin import ed25519, identity, keyring, signature
from model_cache.origin.keyring import Keyring
from model_cache.origin.signature import Signature, short
from model_cache.wheel.names import printable
from model_cache.wheel.payload import Payload

VARIABLE = "MODEL_CACHE_POLICY"
POLICIES = ("require", "prefer", "off")


@dataclass(frozen=True)
class Origin:
    """From whom a wheel is, as far as this host can tell.

    status: "trusted" (signed by a key in `key`), "unknown-key", "expired", "unchecked" (`package` is missing),
    "unsigned", "off" (nobody asked). detail: for people, without the words of `text`; package: what is missing.
    """

    status: str
    key: str | None = None
    detail: str = ""
    package: str = ""

    @property
    def trusted(self) -> bool:
        return self.status == "trusted"

    @property
    def text(self) -> str:
        """In words: "signed by 0123456789abcdef (trusted)"."""
        return _TEXTS[self.status].format(detail=self.detail, package=self.package)

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {"status": self.status, "key": self.key, "text": self.text}


_TEXTS = {
    "trusted": "signed by {detail} (trusted)",
    "unknown-key": "signed by an unknown key ({detail}): intact, origin unknown",
    "expired": "signed by {detail}: intact, origin unknown",
    "unchecked": "signed by {detail}, not checked (the Python package {package} is missing): intact, origin unknown",
    "unsigned": "not signed: intact, origin unknown",
    "off": "origin not checked (MODEL_CACHE_POLICY=off)",
}


@dataclass(frozen=True)
class Trust:
    """What is asked of a wheel. policy: "require", "prefer" or "off"; asker: who does, for messages."""

    policy: str
    keyring: Keyring
    asker: str = "this host"

    @classmethod
    def of_this_host(cls, environ: Mapping[str, str] = os.environ) -> Trust:
        """MODEL_CACHE_POLICY, else `require` as soon as any key file is there (even an expired or revoked one).

        Raises UsageError for an unknown policy, NotTrustedError when a place of keys cannot be relied on.
        """
        policy = environ.get(VARIABLE) or ""
        if policy and policy not in POLICIES:
            raise UsageError(f"{VARIABLE} must be {', '.join(POLICIES)}, not {printable(policy)!r:.40}")
        if policy == "off":
            return cls(policy, Keyring())
        keys = keyring.load(environ)
        return cls(policy or ("require" if keys.keys else "prefer"), keys)

    @classmethod
    def of_files(cls, paths: Iterable[str]) -> Trust:
        """`require`, with exactly the keys in these files and directories. Raises what `load_files` raises."""
        return cls("require", keyring.load_files(paths), "--trust")

    def lenient(self) -> Trust:
        """The same keys, and nothing required: for commands that only show what a wheel is."""
        return Trust("prefer" if self.policy == "require" else self.policy, self.keyring)

    def judge(self, payload: Payload, manifest: bytes, signatures: bytes | None, now: float | None = None) -> Origin:
        """Decide about a wheel from its manifest's bytes and those of its signature file (None without one).

        now: seconds since the epoch, the clock's by default. Raises NotTrustedError when the wheel may not be used
        here: a signature is wrong or revoked, or the policy is not met. Raises DamagedError for a malformed file.
        """
        if signatures is None:
            return self._required(payload, Origin("unsigned"))
        found = signature.parse(signatures, f"{payload.label}: {signature.FILE_NAME}")
        if self.policy == "off":
            return Origin("off")
        now = time.time() if now is None else now
        origins = [self._origin(payload, manifest, one, now) for one in found]
        origin = min(origins, key=lambda origin: _ORDER.index(origin.status))
        if origin.status == "revoked":
            raise NotTrustedError(f"{payload.label}: is signed by {origin.detail}, a key that is revoked here")
        return self._required(payload, origin)

    def _origin(self, payload: Payload, manifest: bytes, one: Signature, now: float) -> Origin:
        if one.key in self.keyring.revoked:
            return Origin("revoked", one.key, short(one.key))
        key = self.keyring.keys.get(one.key)
        if key is None:
            return Origin("unknown-key", one.key, short(one.key))
        name = keyring.label(key)
        if not key.can_check():
            return Origin("unchecked", one.key, name, key.package)
        if one.algorithm != key.algorithm or not key.is_valid(one.value, one.message(manifest)):
            raise NotTrustedError(
                f"{payload.label}: the signature by {name} is wrong: the manifest is not the one that was signed"
            )
        _check_dist_info(payload, one, name)
        if key.expired(now):
            return Origin("expired", one.key, f"{name}, a key that expired on {key.expires}")
        if one.expires and signature.timestamp(one.expires) <= now:
            return Origin("expired", one.key, f"{name} with a signature that expired on {one.expires}")
        return Origin("trusted", one.key, name)

    def _required(self, payload: Payload, origin: Origin) -> Origin:
        if self.policy != "require" or origin.trusted:
            return origin
        if origin.status == "unchecked":
            missing = ed25519.missing() if origin.package == "cryptography" else identity.missing()
            raise NotTrustedError(f"{payload.label}: {missing.message}")
        reason = origin.text.partition(": intact, origin unknown")[0]
        known = ", ".join(keyring.label(key) for key in self.keyring.keys.values()) or "none"
        raise NotTrustedError(
            f"{payload.label}: refused, its origin is unknown: {reason}; {self.asker} requires a signature by a "
            f"trusted key ({self.asker} trusts: {known})"
        )


_ORDER = ("trusted", "revoked", "expired", "unchecked", "unknown-key")
"""Which of several signatures speaks for the wheel: a good one wins, and nothing else hides a revoked one."""


_ACTED_ON = frozenset({"METADATA", "entry_points.txt"})


def _check_dist_info(payload: Payload, one: Signature, name: str) -> None:
    """The small files that the manifest does not cover, as signed. Raises NotTrustedError."""
    from hashlib import sha256

    names = payload.dist_info_files()
    # An installer adds files of its own and may leave some out; these two are what it and engines act on later.
    checked = _ACTED_ON if names is None else one.dist_info.keys()
    wrong = [
        name
        for name in sorted(checked & one.dist_info.keys())
        if sha256(payload.metadata(name)).hexdigest() != one.dist_info[name]
    ]
    wrong += [f"{name} (added)" for name in sorted(set(names or ()) - one.dist_info.keys() - {"RECORD"})]
    missing = sorted(_ACTED_ON - one.dist_info.keys())
    wrong += [f"{path} (not signed)" for path in missing]
    if wrong:
        raise NotTrustedError(
            f"{payload.label}: the signature by {name} does not cover what is there", [printable(p) for p in wrong]
        )
