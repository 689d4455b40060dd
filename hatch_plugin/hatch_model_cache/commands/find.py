"""`model-cache find`: which wheel for a model can be had that this host would use."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_cache.console import Parser
from model_cache.errors import ModelCacheError, NotFoundError, UsageError
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from hatch_model_cache.checking.check import Command
    from hatch_model_cache.publish.finding import Judge, Judged
    from hatch_model_cache.publish.hub_address import HubAddress
    from hatch_model_cache.publish.offers import Offers, Unread, Wanted

_DESCRIPTION = """\
Look for a wheel before anything is deployed or downloaded: in static indexes (`model-cache
index build`), package indexes, directories and repositories on the Hub. Every wheel for the
model is compared with this host, or with --target and --engine, and the best is named with
the one line that installs it, pinned to its hash. With the engine's command after --, the
installed engine is asked what it would load."""

_EPILOG = """\
exit codes:
  0  found: a wheel that fits (with a command: that the engine would load)
  5  no wheel for this model
 10  there are wheels, and none would be loaded
 12  unknown: what may be the wheel could not be looked into
  2  wrong usage or input
  1  a place could not be asked, and the others have nothing
"""

_ENGINE = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[0-9A-Za-z][0-9A-Za-z.!+_-]*)")
_UNKNOWN = 12
_NONE_WOULD_HIT = 10


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``find``."""
    parser = commands.add_parser(
        "find",
        help="say which wheel for a model fits this host, before anything is downloaded",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.usage = "model-cache find [options] MODEL (--index URL|DIR | --hub hf://ORG/NAME) … [-- vllm serve MODEL …]"
    parser.add_argument("model", metavar="MODEL", help="the model's id, or a name it is served under")
    parser.add_argument("--index", metavar="URL|DIR", action="append", default=[], help="an index, site or directory")
    parser.add_argument("--hub", metavar="HF_URL", action="append", default=[], help="a repository on the Hub")
    parser.add_argument("--target", metavar="NAME", help="for this GPU or CPU instead of what is here")
    parser.add_argument("--engine", metavar="NAME==VERSION", help="for this engine instead of the one installed here")
    parser.add_argument("--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="for each index (60)")
    parser.add_argument(
        "--download",
        type=_megabytes,
        default=_megabytes("32"),
        metavar="MB",
        help="download wheels up to this size where a server sends no parts of files (32)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress, also on a terminal")
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most 3600 seconds, not {text}")
    return seconds


def _megabytes(text: str) -> int:
    try:
        megabytes = int(text)
    except ValueError:
        megabytes = -1
    if not 0 <= megabytes <= 4096:
        raise argparse.ArgumentTypeError(f"must be from 0 to 4096 MB, not {text}")
    return megabytes * 1_000_000


def _run(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.publish import finding, hub_address
    from hatch_model_cache.publish.offers import Wanted
    from model_cache.origin.trust import Trust

    if not arguments.index and not arguments.hub:
        raise UsageError("say where to look: --index URL|DIR or --hub hf://ORG/NAME (each may be repeated)")
    if arguments.engine and arguments.engine_command:
        raise UsageError("give --engine or a command after --, not both: the command's engine is the one installed")
    _check_places(arguments.index)
    trust = Trust.of_this_host()
    wanted = Wanted(arguments.model, _hardware(arguments.target))
    judge = _judge(arguments, wanted)
    addresses = [hub_address.parse(text) for text in arguments.hub]
    offers, failures = _search(arguments, addresses, wanted)
    ranked = finding.rank(offers.found, judge(), trust) if offers.found else []
    code = _code(ranked, offers, failures)
    if arguments.json:
        sys.stdout.write(json.dumps(_plain(arguments, ranked, offers, failures), indent=1) + "\n")
    else:
        lines = _told(arguments, ranked, offers, failures)
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    return code


def _check_places(places: Sequence[str]) -> None:
    """Raise UsageError for every --index that can be no index, whatever is there."""
    from hatch_model_cache.publish import web

    problems = []
    for place in places:
        if not place:
            problems.append("--index: is empty: give a URL or a directory")
        elif "://" in place and web.address(place) is None:
            problems.append(f"--index: {web.shown(place):.200} is no address of a web server")
    if problems:
        raise UsageError("There is nothing to look in:", problems)


def _hardware(target: str | None) -> tuple[str, ...]:
    """What a wheel for the target may have in its name. Raises UsageError when there is no such target."""
    from hatch_model_cache import targets
    from hatch_model_cache.targets import Target

    if target is None:
        return ()
    loaded = targets.load(target)
    return (loaded.name, loaded.sm) if isinstance(loaded, Target) else (loaded.name,)


def _judge(arguments: argparse.Namespace, wanted: Wanted) -> Callable[[], Judge]:
    """How wheels are judged; an engine is only asked when there is something to judge."""
    if arguments.engine_command:
        from hatch_model_cache.checking import check

        command = check.parse_command(arguments.engine_command)
        return lambda: _by_command(arguments, command)
    from hatch_model_cache.publish import finding

    host, engine_alone = _host(arguments)
    return lambda: finding.by_fit(host, wanted, engine_alone=engine_alone)


def _host(arguments: argparse.Namespace) -> tuple[Any, bool]:
    """The host to judge for, and whether only its engine's version is known."""
    from dataclasses import replace

    from hatch_model_cache.compile import engines
    from model_cache.machine.host import read_host

    if arguments.engine:
        match = _ENGINE.fullmatch(arguments.engine)
        if not match or match["name"] not in engines.SERVERS:
            known = ", ".join(f"{name}==VERSION" for name in engines.SERVERS)
            raise UsageError(f"--engine must be {known}, not {arguments.engine!r:.80}")
        return replace(read_host(match["name"], arguments.target), engine_version=match["version"]), True
    for name in engines.SERVERS:
        host = read_host(name, arguments.target)
        if host.engine_version:
            return host, False
    raise UsageError(f"no engine is installed in this Python environment: give --engine {engines.SERVERS[0]}==VERSION")


def _by_command(arguments: argparse.Namespace, command: Command) -> Judge:
    """Judge by what the installed engine says it would look for."""
    from hatch_model_cache.checking import check, verdict
    from hatch_model_cache.compile import engines
    from hatch_model_cache.compiling import engine_process, progress
    from hatch_model_cache.publish.finding import Judgement, Standing

    from .check import installed, target_record

    environment = {**os.environ, **command.environment}
    command, python = installed(command)
    target = target_record(arguments.target, engines.adapter(command.engine).KIND, environment)
    try:
        with progress.shown(quiet=arguments.quiet or arguments.json) as shown:
            seen = check.observe(command, target, python, environment=environment, progress=shown)
    except engine_process.UnknownEngineError as error:
        reason = str(error)
        return lambda _: Judgement(Standing.UNKNOWN, (reason,))
    rules = engines.adapter(command.engine).rules(seen.engine["version"])

    def judge(manifest: Any) -> Judgement:
        found = verdict.judge(manifest, seen, rules)
        return Judgement(Standing(str(found.answer)), tuple(map(str, found.reasons)), found.adoptable)

    return judge


def _search(
    arguments: argparse.Namespace, addresses: Sequence[HubAddress], wanted: Wanted
) -> tuple[Offers, list[ModelCacheError]]:
    """What all places have; a place that cannot be asked does not hide the others."""
    from hatch_model_cache.publish.offers import Offers

    offers, failures = Offers(), []
    searches = [partial(_in_place, place, wanted, arguments) for place in arguments.index]
    searches += [partial(_in_hub, address, wanted) for address in addresses]
    for search in searches:
        try:
            offers.add(search())
        except ModelCacheError as error:
            failures.append(error)
    return offers, failures


def _in_place(place: str, wanted: Wanted, arguments: argparse.Namespace) -> Offers:
    from hatch_model_cache.publish import simple_index, site_offers
    from hatch_model_cache.publish.web import Web

    if not place.startswith(("http://", "https://")):
        return site_offers.in_directory(Path(place), wanted)
    web = Web(arguments.timeout)
    url = f"{place.rstrip('/')}/"
    sites = [url, *([url.removesuffix("simple/")] if url.endswith("/simple/") else [])]
    found = (site_offers.in_site(site, web, wanted) for site in sites)
    of_site = next((offers for offers in found if offers), None)
    return of_site or simple_index.in_index(url, web, wanted, arguments.download)


def _in_hub(address: HubAddress, wanted: Wanted) -> Offers:
    from hatch_model_cache.publish import hub_offers
    from hatch_model_cache.publish.hub import Hub

    return hub_offers.in_repository(address, Hub(), wanted)


def _code(ranked: Sequence[Judged], offers: Offers, failures: Sequence[ModelCacheError]) -> int:
    from hatch_model_cache.publish.finding import Standing

    if any(one.usable for one in ranked):
        return 0
    if failures:
        return failures[0].exit_code
    if offers.unread or any(one.standing is Standing.UNKNOWN for one in ranked):
        return _UNKNOWN
    return _NONE_WOULD_HIT if ranked else NotFoundError.exit_code


def _told(
    arguments: argparse.Namespace, ranked: Sequence[Judged], offers: Offers, failures: Sequence[ModelCacheError]
) -> list[str]:
    from hatch_model_cache.checking.verdict import ADOPTABLE

    lines = []
    for one in ranked:
        manifest = one.offer.manifest
        against = "" if one.usable or str(one.standing) not in ("hit", "fits") else ", but may not be used"
        lines.append(f"{one.standing}{against}: {manifest.name} {manifest.version} ({one.offer.source})")
        lines += [f"  {reason}" for reason in one.reasons]
        lines += [f"  {ADOPTABLE}"] if one.adoptable else []
    lines += [_unread(one) for one in offers.unread]
    lines += [f"not asked: {line}" for error in failures for line in [error.message, *error.problems]]
    if ranked and ranked[0].usable:
        return [*lines, "install:", f"  {ranked[0].offer.install}"]
    if not ranked:
        lines.append(f"none: no wheel for {arguments.model}{_near(arguments.model, offers)}")
    return lines


def _unread(one: Unread) -> str:
    return f"unknown: {one.file or one.source}: {one.reason}"


def _near(model: str, offers: Offers) -> str:
    if not offers.others:
        return ""
    near = difflib.get_close_matches(model, sorted(offers.others), n=3, cutoff=0.5) or sorted(offers.others)[:5]
    return f"; there are wheels for {', '.join(near)}"


def _plain(
    arguments: argparse.Namespace, ranked: Sequence[Judged], offers: Offers, failures: Sequence[ModelCacheError]
) -> dict[str, object]:
    return {
        "model": arguments.model,
        "install": ranked[0].offer.install if ranked and ranked[0].usable else None,
        "wheels": [_row(one) for one in ranked],
        "unread": [vars(one) for one in offers.unread],
        "failures": [error.as_dict() for error in failures],
        "other_models": sorted(offers.others),
    }


def _row(one: Judged) -> dict[str, object]:
    offer, manifest = one.offer, one.offer.manifest
    return {
        "name": manifest.name,
        "version": manifest.version,
        "engine": f"{manifest.engine.name}=={manifest.engine.version}",
        "targets": [target.name for target in manifest.targets],
        "standing": str(one.standing),
        "usable": one.usable,
        "reasons": list(one.reasons),
        "adoptable": one.adoptable,
        "source": offer.source,
        "file": offer.file,
        "url": offer.url,
        "sha256": offer.sha256,
        "size": offer.size,
        "keys": list(offer.keys),
        "yanked": offer.yanked,
        "install": offer.install,
    }
