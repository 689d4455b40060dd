"""The same work on many files, on several cores: hashing and copying leave Python's lock to others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

LEAST_BYTES = 64 * 1024 * 1024
"""Less is done sooner than threads are started."""

MAX_WORKERS = 4
"""A starting engine's host has other things to do, and each worker holds a piece of a file in memory."""

_worker = threading.local()
"""Of a thread of ours: that it is one. Its work is not shared out again."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(work: Callable[[Item], Result], items: Sequence[Item], size: int) -> Iterator[Result]:
    """The results of `work` for each item, in order. size: bytes in all.

    Raises what the first failing `work` raises; what was not begun by then is not done.
    """
    workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    if size < LEAST_BYTES or min(workers, len(items)) < 2 or getattr(_worker, "busy", False):
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(workers, "model-cache", _begin)
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    _worker.busy = True
