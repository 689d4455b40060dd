"""``model-cache targets``: list and show the shipped GPUs, and describe this host's."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from model_cache.console import print_json

if TYPE_CHECKING:
    from hatch_model_cache.targets import Target

__all__ = ["add_parsers"]

_JSON_HELP = "print one JSON object"


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register ``targets`` and its subcommands; each sets ``run``, which takes the Namespace and returns 0.

    Errors are left to the caller: UnknownTarget (exit 2), NotFoundError (exit 5, no GPU to probe).
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "targets",
        help="list, show or probe the GPUs a cache can be built for",
        description="A target is a GPU model as data: what its driver answers while an engine compiles. "
        "Without a subcommand the shipped targets are listed.",
    )
    _add_json(parser)
    parser.set_defaults(run=_list)
    commands = parser.add_subparsers(title="subcommands", metavar="{list,show,probe}")
    _add(commands, "list", _list, "list the shipped targets")
    show = _add(commands, "show", _show, "print one shipped target, with the source of every value")
    show.add_argument("name", metavar="NAME", help="a target's name, as `list` shows it")
    _add(
        commands,
        "probe",
        _probe,
        "print this host's GPU as a target file, with its differences from the shipped target",
    )


def _add(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    description = f"{text[0].upper()}{text[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=description)
    _add_json(parser)
    parser.set_defaults(run=run)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    # SUPPRESS, so that a subcommand's parser does not take back a `--json` given before its name.
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=_JSON_HELP)


def _wants_json(arguments: argparse.Namespace) -> bool:
    return bool(getattr(arguments, "json", False))


def _list(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.targets import load_all

    targets = list(load_all().values())
    if _wants_json(arguments):
        return print_json({"targets": [target.as_dict() for target in targets]})
    header = ("NAME", "DEVICE NAME", "CC", "SMS", "MEMORY GIB", "UNVERIFIED")
    rows = [
        (
            target.name,
            target.device_name,
            target.compute_capability,
            str(target.sm_count),
            f"{target.total_memory / 2**30:.1f}",
            str(len(target.unverified)) if target.unverified else "-",
        )
        for target in targets
    ]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        _print("  ".join(cells).rstrip())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.probe import to_toml
    from hatch_model_cache.targets import load

    target = load(arguments.name)
    if _wants_json(arguments):
        return print_json(target.as_dict(sources=True))
    _print(to_toml(target).rstrip())
    return 0


def _probe(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.probe import probe_host

    counts = Counter(probe_host())
    if _wants_json(arguments):
        return print_json({"gpus": [_as_json(target, count) for target, count in counts.items()]})
    _print("\n\n".join(_as_text(target, count) for target, count in counts.items()))
    return 0


def _as_json(target: Target, count: int) -> dict[str, Any]:
    from hatch_model_cache.probe import differences, shipped_like

    shipped = shipped_like(target.device_name)
    found = differences(target, shipped) if shipped else []
    return {
        "count": count,
        "target": target.as_dict(sources=True),
        "shipped": shipped.name if shipped else None,
        "differences": [{"field": name, "shipped": ours, "probed": theirs} for name, ours, theirs in found],
    }


def _as_text(target: Target, count: int) -> str:
    from hatch_model_cache.probe import differences, shipped_like, to_toml

    shipped = shipped_like(target.device_name)
    comments = [f"{count} such GPUs."] if count > 1 else []
    if shipped is None:
        comments.append("No shipped target has this device name.")
    elif found := differences(target, shipped):
        comments.append(f"Differs from the shipped target {shipped.name}:")
        for name, ours, theirs in found:
            doubt = " (unverified there)" if name in shipped.unverified else ""
            comments.append(f"  {name}: shipped {ours}{doubt}, here {theirs}")
    else:
        comments.append(f"Equal to the shipped target {shipped.name}.")
    return "\n".join([to_toml(target).rstrip(), "", *(f"# {line}" for line in comments)])


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
