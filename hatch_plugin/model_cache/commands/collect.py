"""The command `collect`: every cache that a start of the engine fills, and which of them a wheel brings."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from model_cache.commands.results import Result, table
from model_cache.engine import caches
from model_cache.store import location
from model_cache.store.files import human


def run_collect(options: Namespace) -> Result:
    """`model-cache collect`."""
    root = location.cache_root(options.root)
    found = caches.collect(root)
    rows = [("CACHE", "SIZE", "FILES", "IN WHEELS", "WHERE")]
    for one in found:
        more = "" if one.whole else "+"
        packed = "yes" if one.place.packed else "no"
        rows.append((one.place.name, f"{human(one.bytes)}{more}", f"{one.files}{more}", packed, one.place.path))
    left = [one for one in found if one.files and not one.place.packed]
    lines = list(table(rows))
    lines += [f"left out: {one.place.name} ({one.place.variable}): {one.place.why}" for one in left]
    data = [{**asdict(one.place), "files": one.files, "bytes": one.bytes, "whole": one.whole} for one in found]
    return Result({"root": root, "caches": data}, lines)
