"""Fill the table of docs/coverage.md, one cell after the other; goes on where it was.

    make coverage                        every cell that was not run yet, H100 first (about a minute each)
    python tests/cells/run.py --only Llama --column H100 --again

An answer is kept in .cells/answers until the row, a model's files or the target change.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "engines"), str(ROOT / "hatch_plugin")]

from prepare import prepare  # noqa: E402

from cells import cell, rows, table  # noqa: E402
from cells.uv_pip import pip  # noqa: E402

PLACE = ROOT / ".cells"
DOCUMENT = ROOT / "docs" / "coverage.md"


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


def path_of(row: rows.Row, column: rows.Column) -> Path:
    """Where the answer of a cell is kept."""
    return PLACE / "answers" / column.engine / f"{row.name}-{column.target}-{row.digest(column.target)}.json"


def write(every: list[rows.Row]) -> None:
    """The document, from the answers that are kept."""
    answers = {(row.name, title): cell.kept(path_of(row, at)) for row in every for title, at in row.columns.items()}
    DOCUMENT.write_text(table.document(every, answers), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="TEXT", help="only rows with this in their title")
    parser.add_argument("--column", choices=list(rows.COLUMNS), action="append", help="only this column")
    parser.add_argument("--again", choices=["refused", "all"], help="also run what has an answer already")
    parser.add_argument("--through", default="", metavar="COMMAND", help="start engine processes through this command")
    parser.add_argument("--write", action="store_true", help="write the document from what is known; run nothing")
    arguments = parser.parse_args()
    every = rows.load()
    wanted = [row for text in arguments.only or [""] for row in every if text in row.title]
    todo = [
        (row, column)
        for column in arguments.column or rows.COLUMNS
        for row in dict.fromkeys(wanted)
        if column in row.columns and _wanted(cell.kept(path_of(row, row.columns[column])), arguments.again)
    ]
    if not arguments.write:
        for row, column in todo:
            at = rows.COLUMNS[column]
            try:
                answer = bench(at.engine, tuple(shlex.split(arguments.through))).run(row, at)
            except Exception:  # a defect of this script or of packing; the other cells are not concerned
                traceback.print_exc()
                continue
            cell.keep(answer, path_of(row, at))
            write(every)
            print(f"{column} {row.title}: {'hit' if answer.hit else answer.refused} {answer.seconds}", flush=True)
    write(every)
    return 0


def _wanted(answer: cell.Answer | None, again: str | None) -> bool:
    return answer is None or again == "all" or (again == "refused" and not answer.hit)


if __name__ == "__main__":
    sys.exit(main())
