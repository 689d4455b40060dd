"""Ed25519 with the `cryptography` package (extra `sign`): the only module of this side that needs more than Python."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from model_cache.errors import NotTrustedError, UsageError

_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""What every Ed25519 SubjectPublicKeyInfo (RFC 8410) starts with; the 32 bytes of the key follow."""

_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+?)\s*-----END PUBLIC KEY-----\s*")


def public_key(pem: str) -> bytes:
    """The 32 bytes of the one Ed25519 public key in `pem`; read without `cryptography`. Raises ValueError."""
    match = _PEM.fullmatch(pem)
    try:
        data = base64.b64decode("".join(match[1].split()), validate=True) if match else b""
    except binascii.Error:
        data = b""
    if len(data) != len(_DER_PREFIX) + 32 or not data.startswith(_DER_PREFIX):
        raise ValueError("is not one Ed25519 public key in PEM form (-----BEGIN PUBLIC KEY-----)")
    return data[len(_DER_PREFIX) :]


def public_pem(public: bytes) -> str:
    """The PEM form of a public key's 32 bytes."""
    return f"-----BEGIN PUBLIC KEY-----\n{base64.b64encode(_DER_PREFIX + public).decode()}\n-----END PUBLIC KEY-----\n"


def key_id(public: bytes) -> str:
    """The id of a public key: the sha256 (hex) of its 32 bytes."""
    return hashlib.sha256(public).hexdigest()


def available() -> bool:
    """Whether signatures can be checked and made here."""
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError:
        return False
    return True


def missing() -> NotTrustedError:
    """The error that says what to install."""
    return NotTrustedError(
        "signatures need the Python package cryptography, which is not installed here: "
        "pip install 'hatch-model-cache[sign]'"
    )


def is_valid(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` over `message` is by the key `public`. Raises NotTrustedError without `cryptography`."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise missing() from None
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class PrivateKey:
    """A key that signs. Make one with `generate` or `from_pem`."""

    def __init__(self, private: object) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        assert isinstance(private, Ed25519PrivateKey)
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()
        self.id = key_id(self.public)

    @classmethod
    def generate(cls) -> PrivateKey:
        """A new key. Raises NotTrustedError without `cryptography`."""
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError:
            raise missing() from None
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes, what: str) -> PrivateKey:
        """Read an unencrypted PKCS #8 key; what: names it in errors. Raises UsageError, NotTrustedError."""
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError:
            raise missing() from None
        try:
            private = load_pem_private_key(pem, password=None)
        except TypeError:
            raise UsageError(f"{what}: is encrypted; give a key without a passphrase, from a secret store") from None
        except (ValueError, UnsupportedAlgorithm):
            raise UsageError(f"{what}: is not a private key in PEM form; `model-cache keygen` makes one") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise UsageError(f"{what}: is not an Ed25519 key; `model-cache keygen` makes one")
        return cls(private)

    def pem(self) -> bytes:
        """The key itself as PKCS #8 in PEM form, unencrypted."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the signature over `message`; the same message always gives the same."""
        return self._private.sign(message)
