"""``model-cache targets``: list and show the shipped GPUs and CPUs, and describe this host's."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from model_cache.console import print_json
from model_cache.errors import NotFoundError

if TYPE_CHECKING:
    from hatch_model_cache.targets import Target

__all__ = ["add_parsers"]

_JSON_HELP = "print one JSON object"


def add_parsers(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Register ``targets`` and its subcommands; each sets ``run``, which takes the Namespace and returns 0.

    Errors are left to the caller: UnknownTarget (exit 2), NotFoundError (exit 5, neither GPU nor a known CPU to probe).
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "targets",
        help="list, show or probe the GPUs and CPUs a cache can be built for",
        description="A target is a GPU model, as what its driver answers while an engine compiles, or a kind of CPU. "
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
        "print this host's GPU as a target file, with its differences from the shipped one, and name its CPU's target",
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
    from hatch_model_cache.targets import CpuTarget, Target, load_all

    targets = load_all().values()
    if _wants_json(arguments):
        return print_json({"targets": [target.as_dict() for target in targets]})
    gpus = [target for target in targets if isinstance(target, Target)]
    cpus = [target for target in targets if isinstance(target, CpuTarget)]
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
        for target in gpus
    ]
    _print_table([header, *rows])
    _print("")
    titles = ("NAME", "VECTORIZED FOR", "CAPABILITY", "FLAGS")
    _print_table([titles, *((t.name, t.vec_isa, t.cpu_capability, str(len(t.flags))) for t in cpus)])
    return 0


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Columns of text; the first two to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        _print("  ".join(cells).rstrip())


def _show(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.probe import to_toml
    from hatch_model_cache.targets import load

    target = load(arguments.name)
    if _wants_json(arguments):
        return print_json(target.as_dict(sources=True))
    _print(to_toml(target).rstrip())
    return 0


def _probe(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.probe import cpu_target, probe_host

    cpu = cpu_target()
    try:
        counts = Counter(probe_host())
    except NotFoundError:
        if cpu is None:
            raise
        counts = Counter()
    if _wants_json(arguments):
        found = [_as_json(target, count) for target, count in counts.items()]
        return print_json({"cpu": cpu.name if cpu else None, "gpus": found})
    parts = [_as_text(target, count) for target, count in counts.items()]
    parts += [] if counts else ["# No GPU."]
    parts.append(f"# The CPU is of the shipped target {cpu.name}." if cpu else "# The CPU is of no shipped target.")
    _print("\n\n".join(parts))
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
