"""`model-cache push` and `model-cache pull`: wheels to and from the Hub."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from model_cache.console import Parser, print_json
from model_cache.errors import ModelCacheError, UsageError
from model_cache.store.files import human
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from hatch_model_cache.publish.hub import Hub
    from hatch_model_cache.publish.pull import Found, Pulled
    from hatch_model_cache.publish.push import Pushed

_PUSH = """\
Verify a wheel and publish it on a branch of a repository on the Hub, with its manifest,
signature and a card. A branch holds one wheel; what is there already is not uploaded
again. Afterwards the Hub's list is compared with what was pushed. Install lines name the
commit, never the branch."""

_PULL = """\
Download the wheel of a revision on the Hub. A branch or tag is resolved to its commit
first. The wheel is compared with the Hub's list and verified (every byte, and the origin
that this host requires) before it gets its name. With HF_HUB_OFFLINE=1 the local Hub
cache is all that is asked."""

_ADDRESS = "hf://ORG/NAME, or hf://ORG/NAME@REVISION"


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``push`` and ``pull``."""
    push = _add(commands, "push", "publish a wheel on the Hub", _PUSH)
    push.add_argument("wheel", metavar="WHEEL", type=Path, help="the .whl file")
    push.add_argument("address", metavar="HF_URL", help=f"{_ADDRESS} (a branch; default: main)")
    push.add_argument("--create", action="store_true", help="make the repository or the branch if it is not there")
    push.add_argument("--private", action="store_true", help="a repository that is made may be seen by its owner only")
    _add_common(push, "verify, compare, and say what would be uploaded")
    push.set_defaults(run=_push)

    pull = _add(commands, "pull", "download or install a wheel from the Hub", _PULL)
    pull.add_argument("address", metavar="HF_URL", help=f"{_ADDRESS} (a branch, tag or commit; default: main)")
    where = pull.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", type=Path, help="put the file there (default: here)")
    where.add_argument("--install", action="store_true", help="install it into this Python environment instead")
    pull.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        help="require a signature by this public key, or by one of this directory's, and by no other (may be repeated)",
    )
    _add_common(pull, "say what would be downloaded")
    pull.set_defaults(run=_pull)


def _add(
    commands: argparse._SubParsersAction[Parser], name: str, text: str, description: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, help=text, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_common(parser: argparse.ArgumentParser, dry_run: str) -> None:
    parser.add_argument("--dry-run", action="store_true", help=dry_run)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress, also on a terminal")


def _hub(arguments: argparse.Namespace) -> Hub:
    from hatch_model_cache.publish.hub import Hub

    # bars are for people who look on
    return Hub(progress=sys.stderr.isatty() and not arguments.quiet and not arguments.json)


def _push(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.publish import hub_address, push

    address = hub_address.parse(arguments.address)
    if arguments.private and not arguments.create:
        raise UsageError("--private is about a repository that is made: give --create too")
    pushed = push.push(
        arguments.wheel,
        address,
        _hub(arguments),
        create=arguments.create,
        private=arguments.private,
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        return print_json({**vars(pushed), "address": str(pushed.address)})
    return _print(_pushed(pushed))


def _pushed(pushed: Pushed) -> list[str]:
    verb = "would push" if pushed.dry_run else "pushed" if pushed.uploaded or pushed.deleted else "is there already"
    wheel = f"{pushed.wheel} ({human(pushed.size)})"
    lines = [
        f"{wheel} {verb}: {pushed.address}" if verb.startswith("is") else f"{verb} {wheel} to {pushed.address}",
        f"  commit    {pushed.commit or 'a new one'}",
    ]
    if pushed.created:
        lines.append(f"  {'makes' if pushed.dry_run else 'made':9} the {pushed.created}")
    lines += [f"  {word:9} {', '.join(names)}" for word, names in _changes(pushed) if names]
    if not pushed.dry_run:
        lines.append("  compared  with what the Hub lists: equal")
    return lines + [f"  install   {line}" for line in pushed.install]


def _changes(pushed: Pushed) -> list[tuple[str, tuple[str, ...]]]:
    return [("upload" if pushed.dry_run else "uploaded", pushed.uploaded), ("replaces", pushed.deleted)]


def _pull(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.publish import hub_address, installing, pull
    from model_cache.origin.trust import Trust

    address = hub_address.parse(arguments.address)
    trust = Trust.of_files(arguments.trust) if arguments.trust else Trust.of_this_host()
    if arguments.install:
        installing.command(Path())  # whether there is an installer
    hub = _hub(arguments)
    pinned = address.at(hub.commit(address))
    if pinned != address and not arguments.json and not arguments.quiet:
        sys.stderr.write(f"model-cache: {address} is {pinned}\n")
    found = pull.look(pinned, hub)
    if arguments.dry_run:
        return _would_pull(arguments, found)
    with tempfile.TemporaryDirectory(prefix="model-cache-pull-") as scratch:
        out = Path(scratch) if arguments.install else arguments.out or Path()
        pulled = pull.pull(found, out, hub, trust)
        if arguments.install:
            installing.install(pulled.path)
    if not hub.offline:
        with suppress(ModelCacheError):  # the wheel is there, whatever the Hub says by now
            hub.remember(address, "manifest.json")
    if arguments.json:
        return print_json(_plain(pulled, installed=arguments.install))
    return _print(_pulled(pulled, installed=arguments.install))


def _would_pull(arguments: argparse.Namespace, found: Found) -> int:
    size = found.remote.size if found.remote else None
    answer = {"dry_run": True, "address": str(found.address), "commit": found.address.branch, "wheel": found.wheel}
    if arguments.json:
        return print_json({**answer, "size": size})
    return _print([f"would pull {found.wheel}{f' ({human(size)})' if size is not None else ''} from {found.address}"])


def _plain(pulled: Pulled, *, installed: bool) -> dict[str, object]:
    found = pulled.found
    return {
        "address": str(found.address),
        "commit": found.address.branch,
        "name": found.manifest.name,
        "version": found.manifest.version,
        "wheel": found.wheel,
        "path": None if installed else str(pulled.path),
        "installed": installed,
        "size": pulled.size,
        "sha256": pulled.sha256,
        "origin": pulled.origin.as_dict(),
        "compared": pulled.compared,
        "fresh": pulled.fresh,
    }


def _pulled(pulled: Pulled, *, installed: bool) -> list[str]:
    found = pulled.found
    if installed:
        first = f"installed {found.manifest.name} {found.manifest.version} ({human(pulled.size)})"
    else:
        first = f"{'pulled' if pulled.fresh else 'was there already:'} {pulled.path} ({human(pulled.size)})"
    compared = "with what the Hub lists: equal" if pulled.compared else "with nothing: offline, the Hub was not asked"
    return [
        first,
        f"  commit    {found.address.branch}",
        f"  sha256    {pulled.sha256}",
        f"  compared  {compared}",
        f"  verified  every byte; {pulled.origin.text}",
    ]


def _print(lines: list[str]) -> int:
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    return 0
