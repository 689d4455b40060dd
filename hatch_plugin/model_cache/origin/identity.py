"""A signer whom Sigstore vouches for by a name, instead of a key: extra `sigstore`, checked without a network.

A bundle holds what a Sigstore instance said when the signer signed: a certificate with the signer's identity and who
vouched for it, and the transparency log's entry. The host's file of a trusted identity holds that instance's trusted
root, so nobody has to be asked. The `sigstore` package is imported in functions, when such a signature is checked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model_cache.errors import DamagedError, NotTrustedError
from model_cache.origin.signature import SIGSTORE, timestamp
from model_cache.wheel.names import printable
from model_cache.wheel.strict_json import Fields, loads

if TYPE_CHECKING:
    from sigstore.verify import Verifier

SUFFIX = ".sigstore"
"""How the file of a trusted identity ends: one JSON object with the fields of `TrustedIdentity`."""

MAX_BYTES = 256 * 1024
_LINE = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True)
class TrustedIdentity:
    """Somebody whose signatures are trusted, whatever key they were made with.

    id: `key_id` of the two; identity: mail address or URI in the certificate; issuer: URL of who has vouched for it;
    root: the trusted root of the Sigstore instance, JSON; expires: as of a key; path: of the file.
    """

    id: str
    identity: str
    issuer: str
    root: bytes
    name: str
    expires: str | None
    path: str

    algorithm = SIGSTORE
    package = "sigstore"

    def expired(self, now: float) -> bool:
        """Whether it is over at `now` (seconds since the epoch)."""
        return self.expires is not None and timestamp(self.expires) <= now

    def can_check(self) -> bool:
        """Whether the package that checks its signatures is installed here."""
        return available()

    def check_root(self) -> None:
        """Raise NotTrustedError when the trusted root cannot be used, or `sigstore` is missing."""
        _verifier(self.root, self.path)

    def is_valid(self, bundle: bytes, message: bytes) -> bool:
        """Whether `bundle` is a Sigstore bundle by this identity over `message`.

        Raises NotTrustedError without `sigstore`, and for a trusted root that it cannot use.
        """
        verifier = _verifier(self.root, self.path)
        from sigstore.models import Bundle
        from sigstore.verify.policy import Identity

        try:
            policy = Identity(identity=self.identity, issuer=self.issuer)
            verifier.verify_artifact(message, Bundle.from_json(bundle), policy)
        except Exception:  # whatever a hostile bundle makes its reader raise, it is no valid signature
            return False
        return True


def available() -> bool:
    """Whether bundles can be checked here."""
    return importlib.util.find_spec("sigstore") is not None


def missing() -> NotTrustedError:
    """The error that says what to install."""
    return NotTrustedError(
        "Sigstore bundles need the Python package sigstore, which is not installed here: "
        "pip install 'hatch-model-cache[sigstore]'"
    )


def key_id(identity: str, issuer: str) -> str:
    """The id of an identity among those of keys: the sha256 (hex) of both names."""
    return hashlib.sha256(f"sigstore\n{issuer}\n{identity}".encode()).hexdigest()


def parse(text: str, path: str) -> TrustedIdentity:
    """Read the file of a trusted identity; path: names it in errors. Raises NotTrustedError."""
    problems: list[str] = []
    try:
        fields = Fields(loads(text.encode(), path, MAX_BYTES), "", problems)
    except DamagedError as error:
        raise NotTrustedError(f"{printable(error.message)}", error.problems) from None
    identity, issuer = fields.text("identity", _LINE), fields.text("issuer", _LINE)
    name, expires = fields.text("name", _LINE), fields.optional_text("expires")
    root = json.dumps(fields.mapping("trusted_root")).encode()
    fields.done()
    try:
        timestamp(expires) if expires is not None else None
    except ValueError as error:
        problems.append(f"expires: {error}")
    if problems:
        raise NotTrustedError(f"{printable(path)}: is not a trusted identity", problems)
    return TrustedIdentity(key_id(identity, issuer), identity, issuer, root, name, expires, path)


def file_text(identity: str, issuer: str, root: str, name: str = "", expires: str | None = None) -> str:
    """The text of the file of a trusted identity, as `parse` reads it. root: JSON. Raises ValueError for no JSON."""
    document = {"identity": identity, "issuer": issuer, "name": name or identity, "expires": expires}
    return json.dumps({**document, "trusted_root": json.loads(root)}, indent=1) + "\n"


def _verifier(root: bytes, path: str) -> Verifier:
    try:
        from sigstore.models import TrustedRoot
        from sigstore.verify import Verifier
    except ImportError:
        raise missing() from None
    try:
        # It reads files only; this one is in memory.
        descriptor = os.memfd_create("trusted_root.json")
        try:
            os.write(descriptor, root)
            return Verifier(trusted_root=TrustedRoot.from_file(f"/proc/self/fd/{descriptor}"))
        finally:
            os.close(descriptor)
    except Exception as error:
        reason = printable(str(error)).splitlines() or [type(error).__name__]
        raise NotTrustedError(f"{printable(path)}: its trusted_root cannot be used: {reason[0]:.200}") from None
