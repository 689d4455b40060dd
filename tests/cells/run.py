"""Fill the table of docs/coverage.md, one cell after the other; goes on where it was.

    make coverage                        every cell that was not run yet, H100 first (about half a minute each)
    python tests/cells/run.py --only Llama --column H100 --again all

An answer is kept in docs/coverage.json until the row, a model's files or the target change; several of these processes
may run at a time, on different cells. The engine is imported once for
all compiles of a column, which are forked (`fork_server`); a row that sets variables may change the import, so it has
its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import shlex
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "engines"), str(ROOT / "hatch_plugin")]

from prepare import prepare  # noqa: E402

from cells import cell, forked, rows, table  # noqa: E402
from cells.answers import Answers  # noqa: E402
from cells.uv_pip import pip  # noqa: E402

PLACE = ROOT / ".cells"
DOCUMENT = ROOT / "docs" / "coverage.md"
ANSWERS = Answers(DOCUMENT.with_suffix(".json"))


@functools.cache
def own_wheel() -> Path:
    """This project's wheel."""
    own = PLACE / "own"
    shutil.rmtree(own, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(own), str(ROOT)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    [wheel] = own.glob("*.whl")
    return wheel


@functools.cache
def bench(engine: str, through: tuple[str, ...]) -> cell.Bench:
    """Both environments of an engine, the serving one with this project's wheel."""
    serving = prepare(engine, PLACE / "serving" / engine)
    pip("install", "--python", str(serving), "--no-index", "--reinstall", str(own_wheel()))
    return cell.Bench(str(prepare(engine, ROOT / ".engines" / engine)), serving, PLACE, through)


def write(every: list[rows.Row]) -> None:
    """The document, from the answers that are kept."""
    DOCUMENT.write_text(table.document(every, ANSWERS.read(every)), "utf-8")


def benches(
    wanted: Sequence[rows.Row], at: rows.Column, through: tuple[str, ...]
) -> Iterator[tuple[rows.Row, cell.Bench]]:
    """Rows of a column, each with the bench to run it on, cheap ones first."""
    plain = [row for row in wanted if not row.environment and not through]
    with ExitStack() as stack:
        if plain:
            own = bench(at.engine, through)
            engine = stack.enter_context(forked.engine(own.engine, at.target))
            yield from ((row, dataclasses.replace(own, engine=engine)) for row in plain)
    yield from ((row, bench(at.engine, through)) for row in wanted if row not in plain)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="TEXT", help="only rows with this in their title")
    parser.add_argument("--but", action="append", default=[], metavar="TEXT", help="no row with this in its title")
    parser.add_argument("--column", choices=list(rows.COLUMNS), action="append", help="only this column")
    parser.add_argument("--again", choices=["refused", "all"], help="also run what has an answer already")
    parser.add_argument("--through", default="", metavar="COMMAND", help="start engine processes through this command")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after that")
    parser.add_argument("--write", action="store_true", help="write the document from what is known; run nothing")
    arguments = parser.parse_args()
    every = rows.load()
    named = [row for text in arguments.only or [""] for row in every if text in row.title]
    wanted = [row for row in dict.fromkeys(named) if not any(text in row.title for text in arguments.but)]
    known = ANSWERS.read(every)
    todo = [
        (column, row)
        for column in arguments.column or rows.COLUMNS
        for row in wanted
        if column in row.columns and _wanted(known[row.name, column], arguments.again)
    ]
    until = time.monotonic() + arguments.minutes * 60
    if not arguments.write:
        for column, cells in itertools.groupby(todo, key=lambda one: one[0]):
            at = rows.COLUMNS[column]
            for row, on in benches([row for _, row in cells], at, tuple(shlex.split(arguments.through))):
                if time.monotonic() > until:
                    break
                begun = time.monotonic()
                try:
                    answer = on.run(row, at)
                except Exception:  # a defect of this script or of packing; the other cells are not concerned
                    traceback.print_exc()
                    continue
                ANSWERS.keep(row, column, answer)
                write(every)
                said = "hit" if answer.hit else answer.refused
                print(f"{column} {row.title}: {said} {answer.seconds}, {time.monotonic() - begun:.0f} s", flush=True)
    write(every)
    return 0


def _wanted(answer: cell.Answer | None, again: str | None) -> bool:
    return answer is None or again == "all" or (again == "refused" and not answer.hit)


if __name__ == "__main__":
    sys.exit(main())
