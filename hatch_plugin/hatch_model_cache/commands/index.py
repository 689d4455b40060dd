"""`model-cache index build`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_cache.console import print_json
from model_cache.errors import UsageError
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from hatch_model_cache.publish.shelf import Shelf
    from hatch_model_cache.publish.site import Built, Site

__all__ = ["add_parsers"]


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register the command; it sets `run`, which takes the Namespace and returns an exit code."""
    index: argparse.ArgumentParser = subparsers.add_parser(
        "index",
        help="make a static package index of wheels",
        description="Make a package index that any file server can host.",
    )
    actions = index.add_subparsers(required=True, metavar="build")
    build: argparse.ArgumentParser = actions.add_parser(
        "build",
        help="verify wheels and make the index of them",
        description="Verify every wheel and make SITE the index of exactly these: simple/ for pip and uv, "
        "catalogue.json for programs, index.html for people. Wheels are copied, those that SITE has already are kept; "
        "what SITE has and the directories have not is taken away. SITE changes in one step, or not at all.",
    )
    build.add_argument(
        "directories",
        metavar="DIST_DIR",
        nargs="+",
        type=Path,
        help="directories of wheels, each with or without an index.toml",
    )
    build.add_argument(
        "--out", metavar="SITE", type=Path, required=True, help="the index: a new directory, or one made before"
    )
    build.add_argument(
        "--url", help="where SITE will be served, for the page's install lines (default: the page's own address)"
    )
    build.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        help="require of every model cache a signature by this public key, or by one of this directory's, and by no "
        "other (may be repeated; default: what this host requires)",
    )
    build.add_argument("--dry-run", action="store_true", help="verify everything, say what would change, write nothing")
    build.add_argument("--quiet", action="store_true", help="print errors only")
    build.add_argument("--json", action="store_true", help="print one JSON object")
    build.set_defaults(run=_build)


def _build(arguments: argparse.Namespace) -> int:
    from model_cache.origin.trust import Trust

    try:
        from hatch_model_cache.publish import page, shelf, site
    except ImportError as error:
        raise UsageError(
            f"`model-cache index` needs the Python package {error.name!r}: pip install 'hatch-model-cache[index]'"
        ) from error
    url = page.base_url(arguments.url) if arguments.url else None
    trust = Trust.of_files(arguments.trust) if arguments.trust else Trust.of_this_host()
    place = site.Site.at(arguments.out)
    told = _progress(arguments)
    found = shelf.read(arguments.directories, trust, place.known(), told)
    built = site.build(found, place, url=url, dry_run=arguments.dry_run)
    if arguments.json:
        return print_json(_answer(arguments, place, found, built))
    for warning in _warnings(built):
        sys.stderr.write(f"model-cache: warning: {warning}\n")
    if not arguments.quiet:
        sys.stdout.writelines(f"{printable(line)}\n" for line in _lines(arguments, place, found, built))
    return 0


def _progress(arguments: argparse.Namespace) -> Any:
    if arguments.quiet or arguments.json or not sys.stderr.isatty():
        return lambda _: None
    return lambda name: sys.stderr.write(f"verify {printable(name)}\n")


def _warnings(built: Built) -> list[str]:
    from hatch_model_cache.publish.page import SERVING

    if any(package.name == SERVING for package in built.catalogue.others):
        return []
    text = (
        f"{SERVING} is not among the wheels, and every model cache depends on it: hosts that use this index alone "
        "cannot install one, unless they have it"
    )
    return [text]


def _answer(arguments: argparse.Namespace, place: Site, found: Shelf, built: Built) -> dict[str, Any]:
    return {
        "site": str(place.path),
        "changed": built.changed,
        "dry_run": arguments.dry_run,
        "added": list(built.added),
        "removed": list(built.removed),
        "left_out": list(found.left_out),
        "wheels": [
            {"name": one.name, "version": one.version, "file": one.file, "sha256": one.sha256, "size": one.size}
            for one in built.catalogue.packages()
        ],
        "warnings": _warnings(built),
    }


def _lines(arguments: argparse.Namespace, place: Site, found: Shelf, built: Built) -> list[str]:
    from model_cache.store.files import human
    from model_cache.wheel.names import counted

    size = human(sum(one.size for one in built.catalogue.packages()))
    caches, others = len(built.catalogue.wheels), len(built.catalogue.others)
    count = f"{counted(caches, 'model cache')}, {counted(others, 'other wheel')}, {size}"
    if not built.changed:
        return [f"unchanged: {place.path} ({count})"]
    would = "would be " if arguments.dry_run else ""
    lines = [f"{would}built: {place.path} ({count})"]
    lines += [f"  {would}added: {name}" for name in built.added]
    lines += [f"  {would}removed: {name}" for name in built.removed]
    return [*lines, *(f"  left out, no wheel: {name}" for name in found.left_out)]
