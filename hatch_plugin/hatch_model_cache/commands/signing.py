"""`model-cache keygen` and `model-cache sign`."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path
from typing import Any

from model_cache import small_file
from model_cache.console import print_json
from model_cache.errors import NotFoundError, UsageError
from model_cache.signature import short

__all__ = ["add_parsers"]

_EXPIRES = "when it stops to count, in UTC: 2027-01-31T00:00:00Z"


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register both commands; each sets `run`, which takes the Namespace and returns an exit code."""
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


def _keygen(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.signing import generate

    private, public, key = generate(arguments.path, name=arguments.name, expires=arguments.expires)
    if arguments.json:
        return print_json({"key": key, "private": str(private), "public": str(public)})
    return _print(
        f"key {key}\n  {private}: signs; keep it secret\n  {public}: give it to the hosts that are to trust it"
    )


def _sign(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.signing import KEY_VARIABLE, load_key, sign_wheel, time_of_build

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
