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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hatch_plugin")]

from engine import hosts  # noqa: E402
from kernels import page  # noqa: E402

PLACE = ROOT / ".selfcheck"
DOCUMENT = ROOT / "docs" / "selfcheck.md"
MODELS = ROOT / "tests" / "data" / "models"
ENGINE = ROOT / ".engines" / "vllm-0.33.0" / "bin" / "python"
TARGETS = {"H100": "h100-sxm5-80gb", "A100": "a100-sxm4-80gb"}
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Llama": ("llama-tiny", ()),
    "Qwen3": ("qwen3-tiny", ()),
    "Qwen3-MoE": ("qwen3-moe-tiny", ()),
    "Llama, fp8 online": ("llama-tiny", ("--quantization", "fp8")),
}
"""Title → model, and arguments beside the usual ones."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutation", action="store_true", help="change kernels instead of checking them")
    parser.add_argument("--through", default="", metavar="COMMAND", help="start engine processes through this command")
    arguments = parser.parse_args()
    through = shlex.split(arguments.through)
    if arguments.mutation:
        mutate(project("Llama", "H100", through), through)
    else:
        for title in ROWS:
            for column in TARGETS:
                if not answer_of(title, column).exists():
                    check(title, column, through)
    DOCUMENT.write_text(page.document(*known()), "utf-8")
    return 0


def known() -> tuple[dict[tuple[str, str], Any], dict[str, Any] | None]:
    """The answers that are kept: (row, column) → report; of the mutations."""
    cells = {(row, column): answer_of(row, column) for row in ROWS for column in TARGETS}
    reports = {cell: json.loads(path.read_text("utf-8")) for cell, path in cells.items() if path.exists()}
    mutation = PLACE / "mutation.json"
    return reports, json.loads(mutation.read_text("utf-8")) if mutation.exists() else None


def answer_of(title: str, column: str) -> Path:
    """Where the report of a cell is kept."""
    return PLACE / f"{'-'.join(title.lower().replace(',', '').split())}-{column.lower()}.json"


def project(title: str, column: str, through: Sequence[str]) -> Path:
    """The recipe of a cell, compiled."""
    directory = answer_of(title, column).with_suffix("")
    if not directory.exists():
        model, more = ROWS[title]
        arguments = (*hosts.SERVE_ARGS, *more)
        name = f"org/{model}"
        hosts.write_recipe(directory, MODELS / model, name, [name], [TARGETS[column]], serve_args=arguments)
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
