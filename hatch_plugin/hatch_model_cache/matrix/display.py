"""A build of many wheels as people see it: a live table on a terminal, a line for each wheel elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from model_cache.wheel.names import PREFIX, printable

from .builder import Display, Order, Outcome
from .cells import Cell

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table


def line(outcome: Outcome) -> str:
    """One line on what became of a cell."""
    cell = outcome.order.cell
    text = f"{outcome.word}: {cell.name} {cell.version}"
    if outcome.error:
        return f"{text} ({outcome.seconds:.0f} s): {outcome.error.message}"
    if outcome.wheel and outcome.order.state.stale:
        return f"{text} ({outcome.seconds:.0f} s): {outcome.wheel}"
    return f"{text}: {outcome.wheel}" if outcome.wheel else text


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """One line on all of it."""
    words = [outcome.word for outcome in outcomes]
    counts = [f"{words.count(word)} {word}" for word in ("built", "up to date", "failed", "not begun") if word in words]
    return f"{', '.join(counts) or 'nothing to build'} of {len(words)} wheels in {seconds:.0f} s"


class Silent:
    """Shows nothing."""

    def begun(self, cell: Cell) -> None:
        """Shows nothing."""

    def told(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Shows nothing."""

    def ended(self, outcome: Outcome) -> None:
        """Shows nothing."""


class Lines(Silent):
    """A line on stdout for each cell that is finished."""

    def ended(self, outcome: Outcome) -> None:
        """Prints it at once: whoever reads a log wants to see it grow."""
        sys.stdout.write(printable(line(outcome)) + "\n")
        sys.stdout.flush()


class LiveTable:
    """A table on stderr that lives: one row for each cell."""

    def __init__(self, orders: Sequence[Order]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._cells = {order.cell.identifier: order.cell for order in orders}
        self._rows: dict[str, tuple[str, str]] = dict.fromkeys(self._cells, ("waits", ""))
        self._kernels: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._lock = threading.Lock()
        self._finished = False
        self.live = Live(console=Console(stderr=True), get_renderable=self._table, refresh_per_second=4)

    def begun(self, cell: Cell) -> None:
        """The row begins to count."""
        with self._lock:
            self._since[cell.identifier] = time.monotonic()
            self._rows[cell.identifier] = ("builds", "")

    def told(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Shown in the row."""
        with self._lock:
            if "stage" in event:
                self._rows[cell.identifier] = ("builds", str(event["stage"]))
            elif "kernel" in event:
                self._kernels[cell.identifier] = self._kernels.get(cell.identifier, 0) + 1

    def ended(self, outcome: Outcome) -> None:
        """The row's last word."""
        name = outcome.order.cell.identifier
        with self._lock:
            self._took[name] = outcome.seconds
            self._since.pop(name, None)
            self._rows[name] = (outcome.word, outcome.error.message if outcome.error else "")

    def finish(self) -> None:
        """From now on in the matrix's order."""
        self._finished = True

    def _ordered(self) -> list[tuple[str, tuple[str, str]]]:
        """The rows; while it lives those first that say most, since a terminal shows so many lines."""
        rows = list(self._rows.items())
        ranks = {"builds": 0, "failed": 1, "waits": 2}
        return rows if self._finished else sorted(rows, key=lambda row: ranks.get(row[1][0], 3))

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table("wheel", "version", "state", "kernels", "time", "", box=None, pad_edge=False)
        styles = {"built": "green", "up to date": "dim", "failed": "red", "builds": "bold", "waits": "dim"}
        with self._lock:
            now = time.monotonic()
            for name, (word, more) in self._ordered():
                cell = self._cells[name]
                seconds = now - self._since[name] if name in self._since else self._took.get(name, 0.0)
                table.add_row(
                    _Name(cell.name),
                    cell.version,
                    Text(word, style=styles.get(word, "")),
                    str(self._kernels.get(name, "")),
                    f"{seconds:.0f} s" if seconds else "",
                    Text(printable(more), overflow="ellipsis", no_wrap=True),
                )
        return table


class _Name:
    """A wheel's name in whatever width a table has for it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(1, len(self._name))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(shortened(self._name, options.max_width), overflow="ellipsis", no_wrap=True)


def shortened(name: str, width: int) -> str:
    """A wheel's name in at most `width` characters. What all names begin with goes first, then something in the middle:
    the hardware is at the end, and tells wheels apart."""
    if len(name) <= width:
        return name
    own = name.removeprefix(PREFIX)
    if len(own) < width:
        return f"…{own}"
    head = max(0, width - 1) // 3
    return f"{own[:head]}…{own[len(own) - (width - 1 - head) :]}"


@contextmanager
def shown(orders: Sequence[Order], *, quiet: bool) -> Iterator[Display]:
    """The display for this process: a live table if stderr is a terminal and rich is there, else lines."""
    if quiet:
        yield Silent()
        return
    table = _live_table(orders) if sys.stderr.isatty() else None
    if table is None:
        yield Lines()
    else:
        with table.live:
            table.live.refresh()  # rich waits a quarter of a second for the first frame of a table that is asked for
            yield table
            table.finish()


def _live_table(orders: Sequence[Order]) -> LiveTable | None:
    try:
        return LiveTable(orders)
    except ImportError:
        return None
