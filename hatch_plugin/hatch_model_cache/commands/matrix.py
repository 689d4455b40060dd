"""`model-cache matrix`: many wheels from one file, planned, built, or handed to a pipeline."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from model_cache import console
from model_cache.console import Parser, print_json
from model_cache.errors import CompileError
from model_cache.wheel.names import printable

if TYPE_CHECKING:
    from hatch_model_cache.matrix.builder import Order, Outcome
    from hatch_model_cache.matrix.machine import Place

_DESCRIPTION = """\
matrix.toml names models, targets, engine versions and variants; every combination
of them is one wheel. `build` makes those that are not up to date, as many at a time
as fit into cores and memory, and goes on after a failure and where it was stopped."""


def add_parsers(commands: argparse._SubParsersAction[Parser]) -> None:
    """Register ``matrix``."""
    from . import new as new_commands

    parser = commands.add_parser(
        "matrix",
        help="plan and build many wheels from one file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="new|plan|build|emit")
    new = actions.add_parser(
        "new",
        help="make a project with a matrix from the command that serves its first model",
        description="Make a project with a matrix. Takes what `model-cache new` takes; each target gets a wheel.",
    )
    new_commands.add_arguments(new)
    new.set_defaults(run=_new)
    plan = _add(actions, "plan", "list the wheels, and which are to be built and why", _plan)
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    build = _add(actions, "build", "build the wheels that are not up to date", _build)
    build.add_argument("--jobs", type=_count, metavar="N", help="compile processes at a time (default: what fits)")
    build.add_argument(
        "--on",
        choices=["here", "ray"],
        default="here",
        help="build here, or on the Ray cluster that RAY_ADDRESS names (extra `ray`)",
    )
    build.add_argument("--keep-going", action="store_true", default=True, help="go on after a failure (the default)")
    build.add_argument(
        "--fail-fast", action="store_false", dest="keep_going", help="begin nothing more after a failure"
    )
    build.add_argument("--dry-run", action="store_true", help="say what would be built, write nothing")
    build.add_argument("--json", action="store_true", help="print one JSON object")
    build.add_argument("--quiet", action="store_true", help="print errors only")
    emit = _add(actions, "emit", "write what is to be built for a pipeline", _emit)
    emit.add_argument("--format", choices=["github", "gitlab", "json"], required=True, help="for whom")
    emit.add_argument("--all", action="store_true", help="also what is up to date")


def _new(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.matrix import starter

    from . import new

    if len(set(arguments.targets or ())) > 1 and arguments.hardware is None:
        arguments.hardware = "matrix"  # a recipe of several targets needs a word for them; a matrix has none
    project, dropped = new.asked_project(arguments)
    directory = arguments.directory or Path("model-caches")
    files = starter.files(project)
    new.make(arguments, files, directory, {"matrix": "matrix.toml"}, dropped, [])
    return 0


def _add(actions: argparse._SubParsersAction[Parser], name: str, text: str, run: object) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument(
        "matrix", nargs="?", type=Path, default=Path(), metavar="FILE|DIR", help="the matrix (default: ./matrix.toml)"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="WHEEL", help="NAME or NAME==VERSION, also with * (repeatable)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the wheels are (dist beside the matrix)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where it works (.model-cache-matrix beside it)")
    parser.set_defaults(run=run)
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text!r:.40}")
    return int(text)


def _orders(arguments: argparse.Namespace) -> tuple[list[Order], Path, Path]:
    """What was asked for, the working directory and that of the wheels."""
    from hatch_model_cache.matrix import builder, cells, matrix_file

    matrix = matrix_file.load(arguments.matrix)
    wanted = cells.chosen(cells.cells(matrix), arguments.only)
    work = (arguments.work or matrix.directory / ".model-cache-matrix").absolute()
    out = (arguments.out or matrix.directory / "dist").absolute()
    return builder.orders(wanted, work, out), work, out


def _plan(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.matrix import emission

    orders, _, _ = _orders(arguments)
    if arguments.json:
        print_json({"cells": [emission.described(order) for order in orders], "stale": _stale(orders)})
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in _table(orders))
    return 0


def _stale(orders: Sequence[Order]) -> int:
    return sum(order.state.stale for order in orders)


def _table(orders: Sequence[Order]) -> list[str]:
    rows = [("wheel", "version", "engine", "")]
    rows += [
        (
            order.cell.name,
            order.cell.version,
            order.cell.recipe.engine,
            f"build: {order.state.reason}" if order.state.stale else order.state.reason,
        )
        for order in orders
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(row[c].ljust(widths[c]) for c in range(3)), row[3]]).rstrip() for row in rows]
    notes = {note: None for order in orders for note in order.cell.project.notes if "choose one for all" in note}
    return [*lines, f"{_stale(orders)} of {len(orders)} wheels are to be built", *(f"note: {note}" for note in notes)]


def _emit(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.matrix import emission

    orders, _, _ = _orders(arguments)
    wanted = [order for order in orders if order.state.stale or arguments.all]
    sys.stdout.write(emission.emit(wanted, arguments.format, path=str(arguments.matrix)))
    return 0


def _build(arguments: argparse.Namespace) -> int:
    from hatch_model_cache.matrix import builder, display

    orders, work, out = _orders(arguments)
    if arguments.dry_run:
        return _plan(arguments)
    begun = time.monotonic()
    quiet = arguments.quiet or arguments.json
    place = _place(arguments, [order for order in orders if order.state.stale])
    with _ended_alike(), display.shown(orders, quiet=quiet) as shown:
        outcomes = builder.build(orders, place, work=work, out=out, display=shown, fail_fast=not arguments.keep_going)
    seconds = time.monotonic() - begun
    error = _failure(outcomes)
    if arguments.json:
        answer = {"wheels": [_described(outcome) for outcome in outcomes], "seconds": round(seconds, 3)}
        print_json({**answer, "error": error.as_dict()} if error else answer)
    elif not quiet:
        sys.stdout.write(display.summary(outcomes, seconds) + "\n")
        sys.stdout.flush()
    if error and not arguments.json:
        console.print_error(error, as_json=False)
    return error.exit_code if error else 0


@contextmanager
def _ended_alike() -> Iterator[None]:
    """Have SIGTERM, which pipelines send, end what runs as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _place(arguments: argparse.Namespace, stale: Sequence[Order]) -> Place:
    from hatch_model_cache.compiling import interpreter
    from hatch_model_cache.matrix.machine import Machine

    if arguments.on == "ray":
        from hatch_model_cache.matrix.ray_cluster import RayCluster

        return RayCluster(arguments.jobs)
    for engine in {order.cell.recipe.engine_name for order in stale}:
        interpreter.of_host(engine)  # better said once than by every cell
    return Machine(arguments.jobs)


def _failure(outcomes: Sequence[Outcome]) -> CompileError | None:
    failed = [outcome for outcome in outcomes if outcome.error]
    if not failed:
        return None
    problems = []
    for outcome in failed:
        assert outcome.error is not None
        problems.append(f"{outcome.order.cell.identifier}: {outcome.error.message}")
        problems += [f"{outcome.order.cell.identifier}: {problem}" for problem in outcome.error.problems]
    return CompileError(f"{len(failed)} of {len(outcomes)} wheels could not be built:", problems)


def _described(outcome: Outcome) -> dict[str, object]:
    cell = outcome.order.cell
    return {
        "wheel": cell.identifier,
        "name": cell.name,
        "version": cell.version,
        "state": outcome.word,
        "file": str(outcome.wheel) if outcome.wheel else None,
        "seconds": round(outcome.seconds, 3),
        "error": outcome.error.as_dict() if outcome.error else None,
    }
