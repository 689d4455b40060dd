"""A Sigstore of our own: certificate authority, certificate log and transparency log, each with a key made here.

The public services cannot be reached from tests, and would need somebody's account. What these sign has the same form
and is checked by the real `sigstore` package; only the keys, listed in a trusted root of our own, are not the public
ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
SCT_OID = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
PERSON = "release@example.test"
ISSUER = "https://accounts.example.test"
ORIGIN = "log.example.test"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class Services:
    """All of it; two of them do not know each other."""

    def __init__(self) -> None:
        self.authority, self.certificate_log, self.log = new_key(), new_key(), new_key()
        name = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "test"), x509.NameAttribute(NameOID.COMMON_NAME, "test")]
        )
        usage = {**dict.fromkeys(_USAGES, False), "key_cert_sign": True, "crl_sign": True}
        public = self.authority.public_key()
        self.root = (
            self._builder(name, name, public, EPOCH, timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    @staticmethod
    def _builder(
        subject: x509.Name, issuer: x509.Name, key: Any, start: datetime, lasts: timedelta
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + lasts)
        )

    def trusted_root(self) -> dict[str, Any]:
        """What verifiers have to know of these services."""

        def log(key: ec.EllipticCurvePrivateKey, url: str) -> dict[str, Any]:
            public = {
                "rawBytes": b64(spki(key)),
                "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                "validFor": {"start": "2026-01-01T00:00:00Z"},
            }
            return {
                "baseUrl": url,
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": b64(hashlib.sha256(spki(key)).digest())},
            }

        chain = {"certificates": [{"rawBytes": b64(self.root.public_bytes(Encoding.DER))}]}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log, f"https://{ORIGIN}")],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "test", "commonName": "test"},
                    "uri": "https://ca.example.test",
                    "certChain": chain,
                    "validFor": {"start": "2026-01-01T00:00:00Z"},
                }
            ],
            "ctlogs": [log(self.certificate_log, "https://ct.example.test")],
        }

    def bundle(
        self,
        message: bytes,
        *,
        person: str = PERSON,
        issuer: str = ISSUER,
        at: datetime = EPOCH + timedelta(days=30),
        logged_at: datetime | None = None,
    ) -> bytes:
        """What `sigstore sign --bundle` leaves for `message`, signed by `person` at a time."""
        key = new_key()
        certificate = self._certificate(key, person, issuer, at)
        signature = sign(key, message)
        digest = hashlib.sha256(message).digest()
        pem = certificate.public_bytes(Encoding.PEM)
        body = {
            "apiVersion": "0.0.1",
            "kind": "hashedrekord",
            "spec": {
                "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
                "signature": {"content": b64(signature), "publicKey": {"content": b64(pem)}},
            },
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._logged(compact(body), logged_at or at + timedelta(seconds=1))],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": b64(digest)},
                "signature": b64(signature),
            },
        }
        return json.dumps(document).encode()

    def _certificate(self, key: ec.EllipticCurvePrivateKey, person: str, issuer: str, at: datetime) -> x509.Certificate:
        named = x509.UniformResourceIdentifier(person) if "://" in person else x509.RFC822Name(person)
        identifier = self.root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        usage = {**dict.fromkeys(_USAGES, False), "digital_signature": True}
        builder = (
            self._builder(x509.Name([]), self.root.subject, key.public_key(), at, timedelta(minutes=10))
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
            .add_extension(x509.SubjectAlternativeName([named]), critical=True)
            .add_extension(x509.UnrecognizedExtension(ISSUER_OID, issuer.encode()), critical=False)
        )
        before = builder.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        stamps = self._certificate_logged(before, at)
        return builder.add_extension(x509.UnrecognizedExtension(SCT_OID, stamps), critical=False).sign(
            self.authority, hashes.SHA256()
        )

    def _certificate_logged(self, certificate: bytes, at: datetime) -> bytes:
        """The certificate log's promise, as the extension that holds it (RFC 6962)."""
        milliseconds = int(at.timestamp() * 1000)
        of = hashlib.sha256(spki(self.authority)).digest()
        entry = of + len(certificate).to_bytes(3, "big") + certificate
        value = sign(self.certificate_log, struct.pack("!BBQH", 0, 0, milliseconds, 1) + entry + b"\0\0")
        stamp = struct.pack("!B32sQH", 0, hashlib.sha256(spki(self.certificate_log)).digest(), milliseconds, 0)
        stamp += struct.pack("!BBH", 4, 3, len(value)) + value
        listed = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        assert len(listed) < 128
        return bytes([4, len(listed)]) + listed  # a DER octet string

    def _logged(self, body: bytes, at: datetime) -> dict[str, Any]:
        """The transparency log's entry: a tree with nothing else in it."""
        log_id = hashlib.sha256(spki(self.log)).digest()
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"{ORIGIN}\n1\n{b64(root)}\n"
        seconds = int(at.timestamp())
        promised = {"body": b64(body), "integratedTime": seconds, "logID": log_id.hex(), "logIndex": 0}
        return {
            "logIndex": "0",
            "logId": {"keyId": b64(log_id)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(seconds),
            "inclusionPromise": {"signedEntryTimestamp": b64(sign(self.log, compact(promised)))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n— {ORIGIN} {b64(log_id[:4] + sign(self.log, note.encode()))}\n"},
            },
            "canonicalizedBody": b64(body),
        }


_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def compact(document: Any) -> bytes:
    """JSON in its one canonical form, as far as these documents go."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def edited(bundle: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """A bundle with something changed in it."""
    document = json.loads(bundle)
    edit(document)
    return json.dumps(document).encode()
