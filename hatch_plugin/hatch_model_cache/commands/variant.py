"""`model-cache variant`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from model_cache.console import print_json
from model_cache.errors import UsageError
from model_cache.wheel.names import printable

__all__ = ["add_parsers"]


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the command; it sets `run`, which takes the Namespace and returns an exit code."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "variant",
        help="make wheel variants of finished wheels (experimental)",
        description="Make PEP 825 wheel variants: `model-cache-<model>`, of which uv chooses the one for the host's "
        "GPU architecture (`--preview-features wheel-variants`). They hold what the wheels hold, are not signed, and "
        "stand beside the wheels, not for them: no other installer sees them. The format is a draft.",
    )
    parser.add_argument(
        "wheels", metavar="WHEEL", nargs="+", type=Path, help="finished wheels for one GPU architecture"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="directory for the variants")
    parser.add_argument("--dry-run", action="store_true", help="say what would be made, write nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_variant)


def _variant(arguments: argparse.Namespace) -> int:
    try:
        from hatch_model_cache.publish import variants
    except ImportError as error:
        raise UsageError(
            f"`model-cache variant` needs the Python package {error.name!r}: pip install 'hatch-model-cache[index]'"
        ) from error
    planned = variants.plan(arguments.wheels)
    if not arguments.dry_run:
        for one in planned:
            variants.make(one, arguments.out)
    if arguments.json:
        rows = [
            {"wheel": str(one.source), "variant": str(arguments.out / one.file), "name": one.manifest.name}
            for one in planned
        ]
        return print_json({"variants": rows, "dry_run": arguments.dry_run})
    would = "would be " if arguments.dry_run else ""
    for one in planned:
        sys.stdout.write(printable(f"{would}made: {arguments.out / one.file}, of {one.source}") + "\n")
    return 0
