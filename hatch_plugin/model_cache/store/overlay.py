"""A writable cache root that leads to a read-only one: real directories for what the engine adds, links to the files.

vLLM makes `<entry>/inductor_cache` at every start, also a warm one, before it reads `<entry>/rank_r_dp/model` (vllm
0.33.0, vllm/compilation/decorators.py, `__call__`), so a root that it cannot write to ends the start. It opens the
file by its path, so a link is as good as the file, and it saves to a new file that it renames over the old, so a
compile replaces the link and never writes through it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from model_cache.store import plan, staging
from model_cache.store.root import Root
from model_cache.wheel.manifest import Entry
from model_cache.wheel.verify import Deadline


def links(base: Root, entries: Iterable[Entry], deadline: Deadline) -> plan.Links:
    """Which files of `entries` can be links to intact files of the root `base`; every one is read and compared."""
    top = os.path.realpath(base.path)
    found = {}
    for entry in entries:
        comparison = staging.compare(base, entry.directory, plan.as_deployed(entry).files, deadline)
        if comparison is not None:
            intact = (file.path for file in entry.files if file.path not in comparison.wrong)
            found[entry.directory] = {path: f"{top}/{entry.directory}/{path}" for path in intact}
    return found
