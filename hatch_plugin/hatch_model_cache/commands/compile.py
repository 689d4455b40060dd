"""`model-cache compile`: a recipe, or the command that serves the model, becomes artifacts."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_cache.console import Parser, print_json
from model_cache.errors import UsageError
from model_cache.wheel.names import counted, printable

if TYPE_CHECKING:
    from hatch_model_cache.api import Compiled
    from hatch_model_cache.recipe.recipe import Recipe
    from model_cache.wheel.manifest import Manifest

_DESCRIPTION = """\
Compile a model for its targets, without a GPU and without weights: that of a recipe
project, or the one that a command serves (`model-cache compile --target NAME --` before
the command). Leaves an artifact directory, which the build hook packs, or writes into a
cache root. Runs in the engine's interpreter: MODEL_CACHE_PYTHON, else `python` of the
recipe, else this one if it has the engine."""


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``compile``."""
    from .new import add_recipe_arguments

    parser = commands.add_parser(
        "compile",
        help="compile a recipe's model for its targets, without a GPU and without weights",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.usage = (
        "model-cache compile RECIPE_DIR [options]\n"
        "       model-cache compile --target NAME [options] -- vllm serve MODEL …"
    )
    parser.add_argument("recipe", nargs="?", type=Path, metavar="RECIPE_DIR", help="project with the recipe")
    parser.add_argument("--out", type=Path, metavar="DIR", help="new artifact directory (RECIPE_DIR/artifacts)")
    parser.add_argument(
        "--into-cache-root", metavar="DIR", help="put the result into this cache root; artifacts are left with --out"
    )
    parser.add_argument(
        "--capture",
        type=Path,
        metavar="CACHE_ROOT",
        help="compile nothing: take what a real engine, started with this command, has left there",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="compile on the GPU that is here, with random weights (never run on a GPU yet)",
    )
    parser.add_argument(
        "--overlap",
        type=_size,
        metavar="SIZE",
        help='run beside more urgent work: lowest priority, one process at a time, at most SIZE of memory ("4 GiB")',
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything and say what would be compiled")
    parser.add_argument("--quiet", action="store_true", help="show no progress, also on a terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.add_argument_group("with a command, what a recipe says else, as in `model-cache new`")
    add_recipe_arguments(asked)
    parser.set_defaults(run=_run)


def _size(text: str) -> int:
    from hatch_model_cache.packing.wheel_size import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None


def _run(arguments: argparse.Namespace) -> int:
    from hatch_model_cache import api
    from hatch_model_cache.compiling import compiler, delivery, interpreter, progress
    from hatch_model_cache.compiling.overlap import Bounds

    recipe, notes = _recipe(arguments)
    out = _out(arguments)
    way = delivery.way(recipe, native=arguments.native, capture=arguments.capture)
    warnings = [*recipe.warnings(), *recipe.doubts()]
    answer = {**_asked(recipe, out, arguments.into_cache_root), "notes": [*notes], "warnings": warnings}
    answer["mode"] = way.mode
    if not arguments.quiet:
        for kind, texts in (("note", notes), ("warning", warnings)):
            sys.stderr.writelines(f"model-cache: {kind}: {printable(text)}\n" for text in texts)
    bounds = None if arguments.overlap is None else Bounds(arguments.overlap)
    if arguments.dry_run:
        compiler.check_machine(recipe)
        if out is not None:
            compiler.check_out(out)
        if arguments.into_cache_root is not None:
            answer["cache_root"] = delivery.check_root(recipe, arguments.into_cache_root)
        answer["python"] = interpreter.choose(recipe.engine_name, recipe.python)
        interpreter.require(answer["python"], recipe.engine_name, recipe.engine_version)
    else:
        with progress.shown(quiet=arguments.quiet) as shown:
            root = arguments.into_cache_root
            done = delivery.deliver(recipe, out=out, root=root, way=way, bounds=bounds, progress=shown)
        answer |= _done(api.compiled(recipe, done))
    if arguments.json:
        print_json(answer)
    elif not arguments.quiet:
        sys.stdout.writelines(f"{printable(line)}\n" for line in _told(answer))
    return 0


def _recipe(arguments: argparse.Namespace) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe that is meant, and notes on how it follows from a command."""
    from hatch_model_cache.recipe.file import load_recipe
    from hatch_model_cache.scaffold import request, scaffold

    from .new import asked_request

    if arguments.engine_command:
        if arguments.recipe is not None:
            raise UsageError("give the directory of a recipe or a command after --, not both")
        problems: list[str] = []
        asked = asked_request(arguments, problems)
        return request.recipe(asked, scaffold.option_words(), problems)
    if arguments.recipe is None:
        raise UsageError("give the directory of a recipe, or --target NAME and the engine's command after --")
    _refuse_options_of_commands(arguments)
    return load_recipe(arguments.recipe), ()


def _refuse_options_of_commands(arguments: argparse.Namespace) -> None:
    """What describes a command says nothing beside a recipe, which says it itself."""
    from hatch_model_cache.scaffold.request import Request
    from hatch_model_cache.scaffold.scaffold import option_words

    from .new import asked_request

    words, asked = option_words(), asked_request(arguments, [])
    names = [field.name for field in dataclasses.fields(Request) if field.name != "command"]
    given = [words[name.replace("_", "-")] for name in names if getattr(asked, name)]
    if given:
        raise UsageError(f"{', '.join(given)}: is for a command after --; a recipe says it itself")


def _out(arguments: argparse.Namespace) -> Path | None:
    """The artifact directory to make; None where the result goes into a cache root only."""
    if arguments.out is not None or arguments.into_cache_root is not None:
        out: Path | None = arguments.out
        return out
    return (arguments.recipe or Path()) / "artifacts"


def _asked(recipe: Recipe, out: Path | None, root: str | None) -> dict[str, Any]:
    return {
        "name": recipe.distribution_name,
        "engine": recipe.engine,
        "targets": list(recipe.targets),
        "served_as": list(recipe.served_as),
        "recipe_digest": recipe.digest(),
        "artifacts": None if out is None else str(out),
        "cache_root": root,
    }


def _done(compiled: Compiled) -> dict[str, Any]:
    found: dict[str, Any] = {
        "entries": [
            {"target": e.target, "served_as": e.served_as, "prefix": e.prefix, "key": e.key, "ranks": list(e.ranks)}
            for e in compiled.contents.entries
        ],
        "kernels": _kernels(compiled.contents),
        "mode": compiled.contents.build.mode,
    }
    if compiled.cache_root is not None:
        found["cache_root"] = str(compiled.cache_root)
        found["deployed"] = {e.directory: e.action for outcome in compiled.outcomes for e in outcome.entries}
    return found


def _kernels(contents: Manifest) -> int:
    """How many kernels there are: those of GPUs are in the artifacts, those of CPUs files of their own."""
    native = {file.sha256 for file in contents.files() if "shared-object" in file.contains}
    return len(contents.kernels) + len(native)


def _told(answer: dict[str, Any]) -> list[str]:
    what = f"{answer['engine']} for {', '.join(answer['targets'])}, served as {', '.join(answer['served_as'])}"
    places = [answer["artifacts"], answer["cache_root"] and f"the cache root {answer['cache_root']}"]
    where = " and ".join(place for place in places if place)
    done = "capture" if answer["mode"] == "capture" else "compile"
    if "entries" not in answer:
        return [f"would {done} {answer['name']}: {what}, with {answer['python']}, into {where}"]
    count = f"{counted(len(answer['entries']), 'key')}, {counted(answer['kernels'], 'kernel')}"
    return [f"{done}d {answer['name']}: {what}; {count}, in {where}"]
