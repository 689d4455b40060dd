"""The build side's command line. The serving side's comes here, by name, only when one of these commands is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from model_cache import console
from model_cache.console import Parser

from .commands import MODULES


def main(argv: Sequence[str] | None = None) -> int:
    """Run a build command; the exit code says how it ended (`model-cache --help` lists the codes)."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    return console.run(
        lambda: _command(words[:at], words[at + 1 :]),
        as_json="--json" in words[:at],
        interrupted="interrupted; nothing half done is left",
    )


def _command(words: list[str], engine_command: list[str]) -> int:
    parser = Parser(prog="model-cache", description="Build commands of model-cache.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    wanted = [MODULES[words[0]]] if words and words[0] in MODULES else sorted(set(MODULES.values()))
    for name in wanted:
        importlib.import_module(f".commands.{name}", __package__).add_parsers(commands)
    arguments = parser.parse_args(words)
    arguments.engine_command = engine_command
    return int(arguments.run(arguments))
