"""`model-cache selfcheck`: how far a wheel's kernels were checked on a machine without a GPU."""

from __future__ import annotations

import argparse
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from model_cache.console import Parser, print_error, print_json
from model_cache.errors import UsageError
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from hatch_model_cache.compiling.progress import Progress
    from hatch_model_cache.selfcheck.report import Report

_DESCRIPTION = """\
Check the GPU kernels of a wheel, or of a recipe's artifacts (compiled first if there
are none), without a GPU: the generated source in Triton's interpreter against eager
execution (source-checked), its PTX in an interpreter against the source
(ptx-checked), and ptxas again against the shipped cubin (cubin-derived). Nothing is
run on a GPU. Needs the engine's interpreter, as `compile` does, and a wheel built
with `keep = ["ptx"]` or `selfcheck = true`. Runs the programs that the wheel keeps:
check only wheels that you would let an engine load."""

_EPILOG = """\
exit codes:
  0  every kernel that could be checked passed, and at least one was
  1  a kernel failed, or none could be checked
  2  wrong usage or input
  3  the wheel is damaged
  5  there is no such wheel
  6  the engine could not be asked
"""


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``selfcheck``."""
    parser = commands.add_parser(
        "selfcheck",
        help="check a wheel's GPU kernels without a GPU",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", metavar="WHEEL|NAME|RECIPE_DIR", help="a .whl file, an installed wheel, or a recipe")
    parser.add_argument("--sample", type=_positive, metavar="N", help="check only N kernels of each target")
    parser.add_argument("--quiet", action="store_true", help="show no progress, also on a terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_run)


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, not {text!r}")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.compiling import progress
    from model_cache.wheel import small_file

    with progress.shown(quiet=arguments.quiet) as shown:
        if stat.S_ISDIR(small_file.mode(arguments.what)):
            report = _of_recipe(Path(arguments.what), shown, arguments.sample)
        else:
            report = _of_wheel(arguments.what, shown, arguments.sample)
    if arguments.json:
        print_json(report.as_dict())
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in report.lines())
    sys.stdout.flush()
    if (problem := report.problem(report.label)) and not arguments.json:
        print_error(problem, as_json=False)
    return problem.exit_code if problem else 0


def _of_wheel(name: str, shown: Progress, sample: int | None) -> Report:
    from hatch_model_cache.compiling import interpreter
    from hatch_model_cache.selfcheck import checker, subject
    from model_cache.wheel.lookup import open_payload

    with open_payload(name) as payload:
        found = subject.of_payload(payload)
    return checker.check(found, interpreter.of_host(found.manifest.engine.name), shown, sample=sample)


def _of_recipe(directory: Path, shown: Progress, sample: int | None) -> Report:
    from hatch_model_cache.compiling import compiler, interpreter
    from hatch_model_cache.packing import artifacts
    from hatch_model_cache.recipe.file import load_recipe
    from hatch_model_cache.selfcheck import checker, subject

    recipe = load_recipe(directory)
    if not recipe.keeps_evidence:
        raise UsageError(
            f'{directory}: the recipe keeps nothing to check: set `keep = ["ptx"]`, or `selfcheck = true` for a build '
            "that stops when a kernel fails"
        )
    place = directory / "artifacts"
    there = artifacts.read(place) if place.is_dir() else None
    if there and there.recipe_digest != recipe.digest():
        raise UsageError(f"{place}: was compiled from another recipe; compile again, or remove it")
    python = interpreter.choose(recipe.engine_name, recipe.python)
    if there:
        return checker.check(subject.of_artifacts(there), python, shown, sample=sample)
    with tempfile.TemporaryDirectory(prefix="model-cache-selfcheck-") as temporary:
        out = Path(temporary) / "artifacts"
        compiler.compile_recipe(recipe, out, progress=shown)
        return checker.check(subject.of_artifacts(artifacts.read(out)), python, shown, sample=sample)
