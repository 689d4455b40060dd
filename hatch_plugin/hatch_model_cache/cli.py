"""The build side's command line. The serving side's comes here, by name, only when one of these commands is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from itertools import pairwise

from model_cache import console
from model_cache.console import Parser
from model_cache.errors import UsageError

from .commands import MODULES

_TAKE_AN_ENGINE_COMMAND = ("check", "compile", "find", "new", "rehearse")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a build command; the exit code says how it ended (`model-cache --help` lists the codes)."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    return console.run(
        lambda: _command(words[:at], words[at + 1 :]) if at < len(words) else _without_engine_command(words),
        as_json="--json" in words[:at],
        interrupted="interrupted; nothing half done is left",
    )


def _without_engine_command(words: list[str]) -> int:
    """Run a command line without `--`; if it fails where the engine's command was given all the same, say so."""
    try:
        return _command(words, [])
    except UsageError as error:
        begun = any(word == "serve" and before.endswith("vllm") for before, word in pairwise(words))
        if not begun or words[0] not in _TAKE_AN_ENGINE_COMMAND:
            raise
        hint = f"put -- before the engine's command: model-cache {words[0]} … -- vllm serve …"
        raise UsageError(f"{error.message}\n{hint}", error.problems) from None


def _command(words: list[str], engine_command: list[str]) -> int:
    parser = Parser(prog="model-cache", description="Build commands of model-cache.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    wanted = [MODULES[words[0]]] if words and words[0] in MODULES else sorted(set(MODULES.values()))
    for name in wanted:
        importlib.import_module(f".commands.{name}", __package__).add_parsers(commands)
    arguments = parser.parse_args(words)
    arguments.engine_command = engine_command
    return int(arguments.run(arguments))
