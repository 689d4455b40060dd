"""Build commands of `model-cache`. The serving side's command line comes here, by name, only when one is called."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from model_cache import console
from model_cache.console import Parser
from model_cache.errors import CompileError, UsageError

from . import check_cli, signing_cli, targets_cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run a build command; the exit code says how it ended (`model-cache --help` lists the codes)."""
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--") if "--" in words else len(words)
    return console.run(
        lambda: _command(words[:at], words[at + 1 :]),
        as_json="--json" in words[:at],
        interrupted="interrupted; nothing was left behind",
    )


def _command(words: list[str], engine_command: list[str]) -> int:
    parser = Parser(prog="model-cache", description="Build commands of model-cache.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_compile(commands)
    _add_rehearse(commands)
    check_cli.add_parser(commands)
    targets_cli.add_parser(commands)
    signing_cli.add_parsers(commands)
    arguments = parser.parse_args(words)
    arguments.engine_command = engine_command
    return int(arguments.run(arguments))


def _add_compile(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "compile",
        help="compile a recipe's model for its targets, without a GPU and without weights",
        description="Compile the model of a recipe project for its target GPUs and leave an artifact directory, which "
        "the build hook packs. Runs in the engine's interpreter: MODEL_CACHE_PYTHON, else `python` of the recipe, else "
        "this one if it has the engine.",
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE_DIR", help="project with the recipe")
    parser.add_argument("--out", type=Path, metavar="DIR", help="new directory (RECIPE_DIR/artifacts)")
    parser.add_argument("--dry-run", action="store_true", help="check the recipe and say what would be compiled")
    parser.add_argument("--quiet", action="store_true", help="show no progress, also on a terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_compile)


def _compile(arguments: argparse.Namespace) -> int:
    from . import artifacts, compiler, interpreter, progress
    from .recipe_file import load_recipe

    recipe = load_recipe(arguments.recipe)
    out = arguments.out or arguments.recipe / "artifacts"
    answer: dict[str, object] = {
        "name": recipe.distribution_name,
        "engine": recipe.engine,
        "targets": list(recipe.targets),
        "served_as": list(recipe.served_as),
        "recipe_digest": recipe.digest(),
        "warnings": recipe.warnings(),
        "artifacts": str(out),
    }
    if not arguments.quiet:
        for warning in recipe.warnings():
            sys.stderr.write(f"model-cache: warning: {warning}\n")
    if arguments.dry_run:
        compiler.check_engine(recipe)
        answer["python"] = interpreter.choose(recipe.engine_name, recipe.python)
    else:
        with progress.shown(quiet=arguments.quiet) as shown:
            compiler.compile_recipe(recipe, out, progress=shown)
        contents = artifacts.read(out).contents
        answer["entries"] = [
            {"target": e.target, "served_as": e.served_as, "prefix": e.prefix, "key": e.key, "ranks": list(e.ranks)}
            for e in contents.entries
        ]
        answer["kernels"] = len(contents.kernels)
    if arguments.json:
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    elif not arguments.quiet:
        sys.stdout.write(_told(answer) + "\n")
    return 0


def _told(answer: dict[str, object]) -> str:
    names, targets = answer["served_as"], answer["targets"]
    assert isinstance(names, list)
    assert isinstance(targets, list)
    what = f"{answer['engine']} for {', '.join(targets)}, served as {', '.join(names)}"
    if "entries" not in answer:
        return f"would compile {answer['name']}: {what}, with {answer['python']}, into {answer['artifacts']}"
    entries = answer["entries"]
    assert isinstance(entries, list)
    count = f"{len(entries)} keys, {answer['kernels']} kernels"
    return f"compiled {answer['name']}: {what}; {count}, in {answer['artifacts']}"


def _add_rehearse(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "rehearse",
        help="start an unmodified engine under a pretended GPU and say whether it loads its cache",
        description="Start the engine as given, under a pretended GPU, and end it where it would run the model. Shows "
        "whether an installed wheel is found and loaded; not that its kernels are right or fast: nothing runs. "
        "Exit code 0: everything was loaded and nothing compiled; 10: the engine compiled.",
    )
    parser.add_argument("--target", required=True, metavar="NAME", help="the GPU to pretend (model-cache targets)")
    parser.add_argument("--root", type=Path, metavar="DIR", help="use (and change) this cache root, not an empty one")
    parser.add_argument(
        "--timeout", type=_seconds, default=900, metavar="SECONDS", help="end the engine after that long"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.usage = "model-cache rehearse [-h] --target NAME [--timeout SECONDS] [--json] -- vllm serve MODEL …"
    parser.set_defaults(run=_rehearse)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text}")
    return seconds


def _rehearse(arguments: argparse.Namespace) -> int:
    import dataclasses
    import tempfile

    from . import check, rehearsal, targets
    from .compile import engines

    if not arguments.engine_command:
        raise UsageError("give the engine's command line after --: model-cache rehearse --target NAME -- vllm serve …")
    target = targets.load(arguments.target)
    with tempfile.TemporaryDirectory(prefix="model-cache-rehearsal-root-") as scratch:
        # a cache root of its own: a rehearsal that misses compiles, and must leave nothing where servers look
        adapter = engines.adapter(check.parse_command(arguments.engine_command).engine)
        environment = {**os.environ, **adapter.environment(arguments.root or Path(scratch))}
        environment["MODEL_CACHE_ASSUME_TARGET"] = target.name  # the plug-in cannot see a pretended GPU
        report = rehearsal.rehearse(
            arguments.engine_command, target.name, environment=environment, timeout=arguments.timeout
        )
    if arguments.json:
        answer = {"target": target.name, "pretended": True, "warm": report.warm, **dataclasses.asdict(report)}
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    else:
        sys.stdout.write(
            f"{'warm' if report.warm else 'cold'} start under a pretended {target.device_name}: "
            f"{report.loaded} artifacts loaded ({report.parts} parts) in {report.load_seconds:.1f} s, "
            f"{report.inductor_compiles} Inductor compiles, {report.ptxas_runs} ptxas runs; "
            f"{report.seconds:.1f} s until the first call of the model\n"
        )
    if report.error:
        raise CompileError(f"The engine core ended early: {report.error}")
    return 0 if report.warm else 10
