"""The command `status`: once, or again whenever something has changed."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from model_cache.commands.results import Result, joined
from model_cache.engine import status
from model_cache.errors import NotFoundError, UsageError
from model_cache.store import location
from model_cache.store.root import Root
from model_cache.wheel.names import printable

SECONDS = 1.0
"""Between two looks. One costs a few milliseconds."""

_CLEAR = "\x1b[H\x1b[J"


def run_status(options: Namespace) -> Result:
    """`model-cache status`."""
    if not options.watch:
        return _look(options)
    if options.json or options.format != "text":
        raise UsageError("--watch shows text; ask for --json or --format prometheus again and again instead")
    with suppress(KeyboardInterrupt):  # the way to end it
        _watch(options)
    return Result({})


def _look(options: Namespace) -> Result:
    with Root.open(location.cache_root(options.root)) as root:
        found, errors = status.report(root)
    told = status.prometheus(found) if options.format == "prometheus" else status.lines(found, unreadable=len(errors))
    return Result(status.data(found), list(told), joined(errors))


def _watch(options: Namespace) -> None:
    """Draw the status anew on a terminal; in a pipe, print each line that was not there before."""
    shown: Sequence[str] | None = None
    while True:
        lines = _lines(options)
        if lines != shown:
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR + "".join(f"{line}\n" for line in lines))
            else:
                sys.stdout.writelines(f"{line}\n" for line in lines if line not in (shown or ()))
            sys.stdout.flush()
            shown = lines
        time.sleep(SECONDS)


def _lines(options: Namespace) -> Sequence[str]:
    """What is to be seen now. A root that is not there yet may come."""
    try:
        result = _look(options)
    except NotFoundError as error:
        return [printable(error.message)]
    problems = str(result.error).splitlines() if result.error else []
    return [printable(line) for line in (*result.lines, *problems)]
