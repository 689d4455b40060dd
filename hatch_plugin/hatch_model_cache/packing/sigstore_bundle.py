"""A signature by an identity: what a Sigstore client has to sign, and its bundle put into the wheel.

Signing itself asks services on the network for somebody's identity, which is the client's work (`sigstore sign`,
`cosign sign-blob`) in the pipeline that has that identity.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from hatch_model_cache.packing.signing import Signable, Signed
from model_cache.errors import NotTrustedError, UsageError
from model_cache.origin import identity
from model_cache.origin.identity import TrustedIdentity
from model_cache.origin.signature import SIGSTORE, Signature
from model_cache.wheel.names import printable

MAX_BUNDLE_BYTES = 24 * 1024


def message(path: Path) -> bytes:
    """What is to be signed for the wheel at `path`: the same bytes for the same wheel. Raises DamagedError."""
    wheel = Signable.read(path)
    return _unsigned(wheel).message(wheel.manifest)


def attach(path: Path, bundle: bytes, root: bytes) -> tuple[Signed, TrustedIdentity]:
    """Put a bundle over `message(path)` into the wheel at `path`; the signed wheel, and whose signature it is.

    root: trusted root of the Sigstore instance, JSON: what no host would accept is not attached. Raises UsageError for
    what is no bundle, NotTrustedError for one that is not over this wheel, DamagedError, ModelCacheError.
    """
    compact = _compact(bundle)
    if len(compact) > MAX_BUNDLE_BYTES:
        raise UsageError(f"the bundle has {len(compact)} bytes, more than {MAX_BUNDLE_BYTES}")
    wheel = Signable.read(path)
    unsigned = _unsigned(wheel)
    name, issuer = _signer(compact)
    signer = TrustedIdentity(identity.key_id(name, issuer), name, issuer, root, name, None, "--trusted-root")
    if not signer.is_valid(compact, unsigned.message(wheel.manifest)):
        raise NotTrustedError(
            f"{path.name}: the bundle by {printable(name)} is not a valid one over what "
            f"`model-cache sigstore message {path.name}` writes, under this trusted root"
        )
    ours = Signature(signer.id, unsigned.dist_info, value=compact, algorithm=SIGSTORE)
    return wheel.put(ours, signer), signer


def _unsigned(wheel: Signable) -> Signature:
    return Signature(key="", dist_info=wheel.dist_info, algorithm=SIGSTORE)


def _compact(bundle: bytes) -> bytes:
    try:
        return json.dumps(json.loads(bundle), sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        raise UsageError("the bundle is no JSON document") from None


def _signer(bundle: bytes) -> tuple[str, str]:
    """(identity, issuer) as the bundle's certificate names them; whether that is true is not looked at."""
    try:
        from cryptography import x509
    except ImportError:
        raise identity.missing() from None
    issued_by = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")  # Fulcio's extension "OIDC issuer"
    try:
        material = json.loads(bundle)["verificationMaterial"]
        raw = material["certificate"]["rawBytes"]
        certificate = x509.load_der_x509_certificate(base64.b64decode(raw, validate=True))
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        [name] = [
            *names.get_values_for_type(x509.RFC822Name),
            *names.get_values_for_type(x509.UniformResourceIdentifier),
        ]
        issuer = certificate.extensions.get_extension_for_oid(issued_by).value
        assert isinstance(issuer, x509.UnrecognizedExtension)
        return name, issuer.value.decode()
    except (KeyError, TypeError, ValueError, AssertionError, x509.ExtensionNotFound):
        raise UsageError(
            "this is no Sigstore bundle (version 0.3) with the certificate of one mail address or URI"
        ) from None
