"""The command `gc`: what keeps a cache root in order over the life of a host."""

from __future__ import annotations

from argparse import Namespace

from model_cache.commands.results import Result, joined, unless_quiet
from model_cache.store.files import human
from model_cache.wheel.names import counted, printable


def run_gc(options: Namespace) -> Result:
    """`model-cache gc`."""
    from model_cache.store import garbage, location

    root = location.cache_root(options.root)
    found, leftovers, errors = garbage.collect(root, dry_run=options.dry_run)
    would = "would be " if options.dry_run else ""
    rows = []
    lines = []
    for one in found:
        row = {"name": one.name, "version": one.version, "action": one.action, "reason": one.reason}
        rows.append({**row, "removed": [*one.entries], "bytes": one.bytes, "left": [*one.left], "kept": one.kept})
        count = counted(len(one.entries), "entry", "entries")
        lines.append(f"{would}{one.action}: {one.name} {one.version} ({count}, {human(one.bytes)})")
        lines.append(f"  {one.reason}")
        if one.kept:
            lines.append(f"  kept in {root}/{one.kept}; it comes back when its signer is trusted again")
        lines += [f"  left, not ours: {printable(path)}" for path in one.left]
    if leftovers:
        lines.append(f"deleted: {counted(leftovers, 'unfinished or forgotten thing')} of killed deploys")
    if not lines and not errors:
        lines.append(f"nothing to remove in {root}")
    data = {"root": root, "dry_run": options.dry_run, "wheels": rows, "leftovers": leftovers}
    return Result(data, unless_quiet(options, lines), joined(errors))
