"""Fill docs/selfcheck.md: the kernels of some models, checked without a GPU; and what the gates catch.

    make selfcheck      every model of the table: compiled, checked (minutes; goes on where it was)
    make mutation       changes single constants and operators of the tiny Llama's kernels

Answers are kept in .selfcheck until they are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hatch_plugin")]

from cells import rows  # noqa: E402
from engine import hosts  # noqa: E402
from kernels import page  # noqa: E402

PLACE = ROOT / ".selfcheck"
DOCUMENT = ROOT / "docs" / "selfcheck.md"
ENGINE = ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python"
BOTH, ONE = ("H100", "A100"), ("H100",)
ROWS = {
    **dict.fromkeys(("Llama", "Qwen3", "Qwen3-MoE", "Llama, fp8 online"), BOTH),
    **dict.fromkeys(("Llama, compressed-tensors W4A16", "Llama, AWQ", "Llama, NVFP4"), ONE),
    **dict.fromkeys(("Gemma 3", "OPT", "Nemotron-H"), ONE),
}
"""Title of a row of tests/cells/rows.toml → GPUs. When the tolerances were set, nobody had looked at the kernels of the
last three."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutation", action="store_true", help="change kernels instead of checking them")
    parser.add_argument("--through", default="", metavar="COMMAND", help="start engine processes through this command")
    arguments = parser.parse_args()
    through = shlex.split(arguments.through)
    if arguments.mutation:
        mutate(project("Llama", "H100", through), through)
    else:
        for title, column in CELLS:
            if not answer_of(title, column).exists():
                check(title, column, through)
    reports, mutation = known()
    DOCUMENT.write_text(page.document(reports, mutation), "utf-8")
    return page.shortfall(reports)


CELLS = [(title, column) for title, columns in ROWS.items() for column in columns]


def known() -> tuple[dict[tuple[str, str], Any], dict[str, Any] | None]:
    """The answers that are kept: (row, column) → report; of the mutations."""
    paths = {cell: answer_of(*cell) for cell in CELLS}
    reports = {cell: json.loads(path.read_text("utf-8")) for cell, path in paths.items() if path.exists()}
    mutation = PLACE / "mutation.json"
    return reports, json.loads(mutation.read_text("utf-8")) if mutation.exists() else None


def answer_of(title: str, column: str) -> Path:
    """Where the report of a cell is kept."""
    return PLACE / f"{'-'.join(title.lower().replace(',', '').split())}-{column.lower()}.json"


def project(title: str, column: str, through: Sequence[str]) -> Path:
    """The recipe of a cell, compiled."""
    directory = answer_of(title, column).with_suffix("")
    [row] = [row for row in rows.load() if row.title == title]
    if not directory.exists():
        name, target = f"org/{row.name}", rows.GPUS[column].target
        with tempfile.TemporaryDirectory() as temporary:
            model = Path(temporary) / "model"
            row.write_model(model)
            hosts.write_recipe(directory, model, name, [name], [target], serve_args=row.serve_args)
        recipe = directory / "pyproject.toml"
        recipe.write_text(recipe.read_text("utf-8") + 'keep = ["ptx"]\n', "utf-8")
    if not (directory / "artifacts").exists():
        subprocess.run([*through, *command("compile", directory)], env=environment(), check=True)
    return directory


def check(title: str, column: str, through: Sequence[str]) -> None:
    """Check one cell and keep its report, with the seconds that it took."""
    directory = project(title, column, through)
    begun = time.monotonic()
    done = subprocess.run(
        [*through, *command("selfcheck", directory), "--json"], env=environment(), check=False, stdout=subprocess.PIPE
    )
    report = json.loads(done.stdout)
    if "counts" not in report:
        raise SystemExit(f"{title} on {column}: {report}")
    report = {**report, "subject": None, "seconds": round(time.monotonic() - begun)}
    answer_of(title, column).write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(f"{title} on {column}: {report['counts']}, {report['seconds']} s", flush=True)


def mutate(directory: Path, through: Sequence[str]) -> None:
    """Change the kernels of one artifact directory, one thing at a time."""
    script = Path(__file__).with_name("mutate.py")
    arguments = [str(ENGINE), str(script), str(directory / "artifacts"), str(PLACE / "mutation.json")]
    variables = {"TRITON_INTERPRET": "1", "TORCHINDUCTOR_CACHE_DIR": str(PLACE / "inductor")}
    subprocess.run([*through, *arguments], env={**os.environ, **variables}, check=True)


def command(name: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "model_cache", name, str(directory)]


def environment() -> dict[str, str]:
    return {**os.environ, "MODEL_CACHE_PYTHON": str(ENGINE)}


if __name__ == "__main__":
    sys.exit(main())
