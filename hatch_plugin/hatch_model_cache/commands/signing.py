"""`model-cache keygen`, `model-cache sign` and `model-cache sigstore`."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path
from typing import Any

from model_cache.console import print_json
from model_cache.errors import ModelCacheError, NotFoundError, UsageError
from model_cache.origin.signature import short
from model_cache.wheel import small_file

__all__ = ["add_parsers"]

_EXPIRES = "when it stops to count, in UTC: 2027-01-31T00:00:00Z"


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the commands; each sets `run`, which takes the Namespace and returns an exit code."""
    keygen: argparse.ArgumentParser = subparsers.add_parser(
        "keygen",
        help="make a key pair to sign wheels with",
        description="Make an Ed25519 key pair: PATH.pem, which signs and is for you alone (mode 0600, not encrypted), "
        "and PATH.pub, which hosts trust (`model-cache trust add PATH.pub`).",
    )
    keygen.add_argument("path", metavar="PATH", type=Path, help="both files' name without its ending")
    keygen.add_argument("--name", default="", help="whose key it is, for messages (default: the file's name)")
    keygen.add_argument("--expires", metavar="TIME", help=_EXPIRES)
    keygen.add_argument("--json", action="store_true", help="print one JSON object")
    keygen.set_defaults(run=_keygen)
    sign: argparse.ArgumentParser = subparsers.add_parser(
        "sign",
        help="sign finished wheels",
        description="Verify wheels and put a signature into them. Their content stays as it is; signatures by other "
        "keys stay too. The same wheel, key and times give the same bytes. The creation time is SOURCE_DATE_EPOCH, or "
        "none.",
    )
    sign.add_argument("wheels", metavar="WHEEL|DIR", nargs="+", type=Path, help="wheels, or directories of wheels")
    sign.add_argument("--key", metavar="FILE", help="private key in PEM form (default: MODEL_CACHE_SIGNING_KEY)")
    sign.add_argument("--created", metavar="TIME", help="when it was signed, in UTC (default: SOURCE_DATE_EPOCH)")
    sign.add_argument("--expires", metavar="TIME", help=_EXPIRES)
    sign.add_argument("--json", action="store_true", help="print one JSON object")
    sign.set_defaults(run=_sign)
    _add_sigstore(subparsers)


def _add_sigstore(subparsers: argparse._SubParsersAction[Any]) -> None:
    sigstore: argparse.ArgumentParser = subparsers.add_parser(
        "sigstore",
        help="sign a finished wheel with an identity instead of a key",
        description="In three steps: `message` writes what is to be signed; a Sigstore client signs that file "
        "(`sigstore sign --bundle BUNDLE FILE`, `cosign sign-blob --bundle BUNDLE FILE`); `attach` puts its bundle "
        "into the wheel.",
    )
    actions = sigstore.add_subparsers(required=True, metavar="message|attach")
    message = actions.add_parser("message", help="write what a Sigstore client has to sign for a wheel")
    message.add_argument("wheel", metavar="WHEEL", type=Path)
    message.add_argument("--out", metavar="FILE", type=Path, required=True, help="where to; replaced if it is there")
    message.set_defaults(run=_message)
    attach = actions.add_parser("attach", help="put a Sigstore client's bundle into the wheel it was made for")
    attach.add_argument("wheel", metavar="WHEEL", type=Path)
    attach.add_argument("--bundle", metavar="FILE", type=Path, required=True, help="what the client has written")
    attach.add_argument(
        "--trusted-root",
        metavar="FILE",
        type=Path,
        required=True,
        help="trusted root of the Sigstore instance (JSON), by which the bundle is checked before it is attached",
    )
    attach.set_defaults(run=_attach)
    for action in (message, attach):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def _keygen(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.packing.signing import generate

    private, public, key = generate(arguments.path, name=arguments.name, expires=arguments.expires)
    if arguments.json:
        return print_json({"key": key, "private": str(private), "public": str(public)})
    return _print(
        f"key {key}\n  {private}: signs; keep it secret\n  {public}: give it to the hosts that are to trust it"
    )


def _sign(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.packing.signing import KEY_VARIABLE, load_key, sign_wheel, time_of_build

    path = arguments.key or os.environ.get(KEY_VARIABLE)
    if not path:
        raise UsageError(f"give the private key with --key or {KEY_VARIABLE}; `model-cache keygen` makes one")
    key = load_key(path)
    created = arguments.created or time_of_build()
    signed = [sign_wheel(wheel, key, created=created, expires=arguments.expires) for wheel in _wheels(arguments.wheels)]
    if arguments.json:
        rows = [{"wheel": str(one.path), "keys": list(one.keys), "changed": one.changed} for one in signed]
        return print_json({"key": key.id, "wheels": rows})
    for one in signed:
        word = "signed" if one.changed else "was signed already"
        _print(f"{word}: {one.path} by {', '.join(map(short, one.keys))}")
    return 0


def _message(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.packing.sigstore_bundle import message

    data = message(arguments.wheel)
    try:
        arguments.out.write_bytes(data)
    except OSError as error:
        raise ModelCacheError(f"{arguments.out}: cannot be written: {error.strerror}") from None
    if arguments.json:
        return print_json({"wheel": str(arguments.wheel), "message": str(arguments.out), "bytes": len(data)})
    return _print(f"written: {arguments.out}; have a Sigstore client sign it, then `model-cache sigstore attach`")


def _attach(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.packing.sigstore_bundle import attach
    from model_cache.origin import identity

    bundle, root = (_read(path, identity.MAX_BYTES) for path in (arguments.bundle, arguments.trusted_root))
    signed, signer = attach(arguments.wheel, bundle, root)
    if arguments.json:
        row = {"wheel": str(signed.path), "keys": list(signed.keys), "changed": signed.changed}
        return print_json({"key": signer.id, "identity": signer.identity, "issuer": signer.issuer, **row})
    word = "signed" if signed.changed else "was signed already"
    return _print(f"{word}: {signed.path} by {signer.identity} ({short(signer.id)}), as {signer.issuer} vouches")


def _read(path: Path, limit: int) -> bytes:
    try:
        return small_file.read(str(path), limit)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _wheels(paths: list[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        mode = small_file.mode(path)
        if stat.S_ISDIR(mode):
            inside = sorted(path.glob("*.whl"))
            if not inside:
                raise NotFoundError(f"{path}: holds no wheel")
            found += inside
        elif stat.S_ISREG(mode):
            found.append(path)
        else:
            raise NotFoundError(f"{path}: there is no such file")
    return list(dict.fromkeys(found))


def _print(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0
