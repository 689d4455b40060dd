"""Work that must not hold an engine up, whatever a disk does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from model_cache.errors import ModelCacheError

T = TypeVar("T")


class NoAnswerError(ModelCacheError):
    """The work has not come to an end in time; its thread is left behind."""

    kind = "timeout"


def call(work: Callable[[], T], seconds: float) -> T:
    """The result of `work`, which runs in a thread of its own. Raises what it raises, or NoAnswerError.

    A disk that does not answer holds up the thread, not the caller.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=run, name="model-cache", daemon=True)
    worker.start()
    worker.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise NoAnswerError(f"no answer after {seconds:g} s")
    return results[0]
