"""The matrix for a pipeline: what GitHub's `strategy.matrix` takes, a child pipeline of GitLab, plain JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hatch_model_cache.scaffold import templating
from hatch_model_cache.scaffold.scaffold import template_values
from model_cache.errors import UsageError

from .builder import Order

GITHUB_JOBS = 256
"""Jobs that GitHub lets one matrix have."""

FORMATS = ("github", "gitlab", "json")


def emit(orders: Sequence[Order], form: str, *, path: str) -> str:
    """The cells that are to be built, as text that ends with a newline.

    form: one of `FORMATS`. path: how a job names the matrix file.
    Raises UsageError if the form cannot hold that many.
    """
    if form == "gitlab":
        values = {**template_values(), "cells": [described(order) for order in orders], "path": path}
        return templating.render("matrix/child-pipeline.yml.jinja", values)
    if form == "github":
        if len(orders) > GITHUB_JOBS:
            raise UsageError(
                f"{len(orders)} wheels are to be built, and GitHub takes {GITHUB_JOBS} jobs in a matrix: "
                "split the file, or choose with --only."
            )
        include = [{"wheel": order.cell.identifier, **_named(order)} for order in orders]
        return json.dumps({"include": include}, separators=(",", ":")) + "\n"  # GITHUB_OUTPUT takes lines
    return json.dumps({"cells": [described(order) for order in orders]}, indent=1) + "\n"


def described(order: Order) -> dict[str, Any]:
    """A cell as JSON."""
    cell = order.cell
    return {
        "wheel": cell.identifier,
        "name": cell.name,
        "version": cell.version,
        **_named(order),
        "targets": list(cell.recipe.targets),
        "variant": cell.variant,
        "key": order.key.digest,
        "stale": order.state.stale,
        "reason": order.state.reason,
        "file": str(order.state.wheel) if order.state.wheel else None,
        "notes": list(cell.project.notes),
    }


def _named(order: Order) -> dict[str, str]:
    recipe = order.cell.recipe
    return {"model": recipe.model, "engine": recipe.engine}
