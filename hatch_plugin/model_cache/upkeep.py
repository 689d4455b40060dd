"""The commands `rollback` and `gc`: what keeps a cache root in order over the life of a host."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from model_cache.commands import Result, joined, outcome_data, outcome_lines, unless_quiet
from model_cache.errors import ModelCacheError, NotFoundError
from model_cache.files import human
from model_cache.names import printable


def run_rollback(options: Namespace) -> Result:
    """`model-cache rollback NAME …`."""
    from model_cache import deploy, kept, location, state
    from model_cache.host import ASSUME_TARGET, read_host
    from model_cache.root import Root
    from model_cache.verify import read_manifest

    root_path = location.cache_root(options.root)
    assumed = options.assume_target or os.environ.get(ASSUME_TARGET) or None
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ModelCacheError] = []
    for name in dict.fromkeys(options.names):
        try:
            with Root.open(root_path) as root:
                found = state.require(root, name)
                if not found.previous:
                    raise NotFoundError(f"{name}: no version before {found.version} is kept in {root_path}")
                with kept.open_kept(root, name, found.previous) as payload:
                    engine = read_manifest(payload).manifest.engine.name
            host = read_host(engine, assumed)
            outcome = deploy.rollback(name, root_path, host, dry_run=options.dry_run)
        except ModelCacheError as error:
            rows.append({"name": name, "outcome": error.kind, "problems": [error.message, *error.problems]})
            errors.append(error)
            continue
        rows.append({**outcome_data(outcome), "outcome": "rolled-back", "from": found.version})
        would = "would be " if options.dry_run else ""
        lines.append(f"{would}rolled back: {outcome.name} from {found.version} to {outcome.version}")
        lines += outcome_lines(outcome, root_path)
        if not options.dry_run:
            lines.append(
                f"  engine starts leave {found.version} alone; `model-cache deploy {outcome.name}` brings it back"
            )
    return Result({"root": root_path, "wheels": rows}, unless_quiet(options, lines), joined(errors))


def run_gc(options: Namespace) -> Result:
    """`model-cache gc`."""
    from model_cache import garbage, location

    root = location.cache_root(options.root)
    found, leftovers, errors = garbage.collect(root, dry_run=options.dry_run)
    would = "would be " if options.dry_run else ""
    rows = []
    lines = []
    for one in found:
        left = one.removal.left if one.removal else ()
        rows.append(
            {
                "name": one.name,
                "version": one.version,
                "reason": one.reason,
                "removed": [*one.entries],
                "bytes": one.bytes,
                "left": [*left],
            }
        )
        lines.append(f"{would}removed: {one.name} {one.version} ({len(one.entries)} entries, {human(one.bytes)})")
        lines.append(f"  {one.reason}")
        lines += [f"  left, not ours: {printable(path)}" for path in left]
    if leftovers:
        lines.append(f"deleted: {leftovers} unfinished or forgotten things of killed deploys")
    if not lines and not errors:
        lines.append(f"nothing to remove in {root}")
    data = {"root": root, "dry_run": options.dry_run, "wheels": rows, "leftovers": leftovers}
    return Result(data, unless_quiet(options, lines), joined(errors))
