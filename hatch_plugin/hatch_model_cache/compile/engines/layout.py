"""Which GPU each rank of an engine uses: generated code holds its number, and no key of the engine does."""

from __future__ import annotations

import os
from collections.abc import Mapping

PER_RANK, SINGLE = "per-rank", "single"
"""Rank r uses the r-th GPU that it sees; or the first, since a launcher shows every process one GPU only."""

LAYOUTS = (PER_RANK, SINGLE)

FACT = "device.layout"
"""Its name among what is in no key."""


def of_environment(environ: Mapping[str, str] = os.environ) -> str:
    """The layout of an engine that is started in an environment, as far as that tells: with one GPU to be seen, several
    ranks on this host can only have one each, by a launcher that goes round it."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return SINGLE if len(visible) == 1 else PER_RANK
