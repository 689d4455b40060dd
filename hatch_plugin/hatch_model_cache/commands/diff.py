"""`model-cache diff`: what differs between two wheels, and in what that lies."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from model_cache.console import Parser, print_json
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.names import counted, printable

if TYPE_CHECKING:
    from hatch_model_cache.checking.difference import Difference

DIFFERENT = 10
_SHOWN = 60  # characters of a value

_EPILOG = """\
exit codes:
  0  nothing differs
 10  something does
  3  a wheel is damaged
  5  there is no such wheel
"""


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``diff``."""
    parser = commands.add_parser(
        "diff",
        help="say what differs between two wheels, down to the kernel",
        description="Verify two wheels, then compare their manifests value by value, their cache keys, their kernels "
        "(machine code and the rest) and their files. Nothing in them is run or unpickled.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", metavar="NAME|WHEEL", help="an installed wheel's name, or the path of a .whl file")
    parser.add_argument("second", metavar="NAME|WHEEL", help="the other one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.checking.difference import Side, differences

    with open_payload(arguments.first) as one, open_payload(arguments.second) as other:
        first, second = Side.of(one), Side.of(other)
        found = differences(first, second)
    if arguments.json:
        print_json({"equal": not found, "differences": [asdict(difference) for difference in found]})
    elif found:
        sys.stdout.writelines(f"{printable(line)}\n" for line in _lines(found))
    else:
        sys.stdout.write(f"nothing differs ({counted(len(first.manifest.entries), 'entry', 'entries')} compared)\n")
    return DIFFERENT if found else 0


def _lines(found: list[Difference]) -> list[str]:
    lines = []
    area = ""
    for difference in found:
        if difference.area != area:
            area = difference.area
            lines.append(area)
        note = f" ({difference.note})" if difference.note else ""
        lines.append(f"  {difference.what}: {_short(difference.first)} → {_short(difference.second)}{note}")
    return lines


def _short(value: str | None) -> str:
    text = "absent" if value is None else value
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
