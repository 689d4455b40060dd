"""The command line, for which this project's own source does not change: it is in a matrix's keys, and somebody may be
editing it while tests run."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = """
import sys
from hatch_model_cache.matrix import records
from model_cache import cli
records._own_source = lambda: "0" * 64
sys.exit(cli.main(sys.argv[1:]))
"""


def command(*arguments: str | Path) -> list[str]:
    """`model-cache matrix …`."""
    return [sys.executable, "-c", SCRIPT, "matrix", *map(str, arguments)]
