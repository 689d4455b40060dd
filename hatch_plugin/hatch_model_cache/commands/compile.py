"""`model-cache compile`: a recipe becomes an artifact directory."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from model_cache.console import Parser, print_json
from model_cache.wheel.names import counted

if TYPE_CHECKING:
    from model_cache.wheel.manifest import Manifest


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``compile``."""
    parser = commands.add_parser(
        "compile",
        help="compile a recipe's model for its targets, without a GPU and without weights",
        description="Compile the model of a recipe project for its targets and leave an artifact directory, which "
        "the build hook packs. Runs in the engine's interpreter: MODEL_CACHE_PYTHON, else `python` of the recipe, else "
        "this one if it has the engine.",
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE_DIR", help="project with the recipe")
    parser.add_argument("--out", type=Path, metavar="DIR", help="new directory (RECIPE_DIR/artifacts)")
    parser.add_argument("--dry-run", action="store_true", help="check the recipe and say what would be compiled")
    parser.add_argument("--quiet", action="store_true", help="show no progress, also on a terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.compiling import compiler, interpreter, progress
    from hatch_model_cache.packing import artifacts
    from hatch_model_cache.recipe.file import load_recipe

    recipe = load_recipe(arguments.recipe)
    out = arguments.out or arguments.recipe / "artifacts"
    warnings = [*recipe.warnings(), *recipe.doubts()]
    answer: dict[str, object] = {
        "name": recipe.distribution_name,
        "engine": recipe.engine,
        "targets": list(recipe.targets),
        "served_as": list(recipe.served_as),
        "recipe_digest": recipe.digest(),
        "warnings": warnings,
        "artifacts": str(out),
    }
    if not arguments.quiet:
        for warning in warnings:
            sys.stderr.write(f"model-cache: warning: {warning}\n")
    if arguments.dry_run:
        answer["python"] = interpreter.choose(recipe.engine_name, recipe.python)
    else:
        with progress.shown(quiet=arguments.quiet) as shown:
            compiler.compile_recipe(recipe, out, progress=shown)
        contents = artifacts.read(out).contents
        answer["entries"] = [
            {"target": e.target, "served_as": e.served_as, "prefix": e.prefix, "key": e.key, "ranks": list(e.ranks)}
            for e in contents.entries
        ]
        answer["kernels"] = _kernels(contents)
    if arguments.json:
        print_json(answer)
    elif not arguments.quiet:
        sys.stdout.write(_told(answer) + "\n")
    return 0


def _kernels(contents: Manifest) -> int:
    """How many kernels there are: those of GPUs are in the artifacts, those of CPUs files of their own."""
    native = {file.sha256 for file in contents.files() if "shared-object" in file.contains}
    return len(contents.kernels) + len(native)


def _told(answer: dict[str, object]) -> str:
    names, targets = answer["served_as"], answer["targets"]
    assert isinstance(names, list)
    assert isinstance(targets, list)
    what = f"{answer['engine']} for {', '.join(targets)}, served as {', '.join(names)}"
    if "entries" not in answer:
        return f"would compile {answer['name']}: {what}, with {answer['python']}, into {answer['artifacts']}"
    entries, kernels = answer["entries"], answer["kernels"]
    assert isinstance(entries, list)
    assert isinstance(kernels, int)
    count = f"{counted(len(entries), 'key')}, {counted(kernels, 'kernel')}"
    return f"compiled {answer['name']}: {what}; {count}, in {answer['artifacts']}"
