"""Builds the cells that are not up to date: as many at a time as their place has room for, each failure for itself."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hatch_model_cache.scaffold import scaffold
from model_cache.errors import ModelCacheError, UsageError
from model_cache.wheel.names import data_package

from . import records
from .cell_process import PROJECT
from .cells import Cell
from .machine import Place, weight


@dataclass(frozen=True)
class Order:
    """A cell, its project's files and key, and whether its wheel is up to date."""

    cell: Cell
    files: Mapping[str, bytes]
    key: records.Key
    state: records.State


@dataclass(frozen=True)
class Outcome:
    """What became of an order."""

    order: Order
    wheel: Path | None = None
    """The finished wheel; None when it failed or was not begun."""
    seconds: float = 0.0
    error: ModelCacheError | None = None
    begun: bool = True

    @property
    def word(self) -> str:
        """In one or two words."""
        if not self.order.state.stale:
            return "up to date"
        if self.error:
            return "failed"
        return "built" if self.begun else "not begun"


class Display(Protocol):
    """Told of what happens to cells; called from several threads."""

    def begun(self, cell: Cell) -> None:
        """A cell's build begins."""

    def told(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """The cell is at a ``stage``, or has one more ``kernel``."""

    def ended(self, outcome: Outcome) -> None:
        """A cell is finished, one way or the other."""


def orders(found: Sequence[Cell], work: Path, out: Path) -> list[Order]:
    """The cells with their keys and states. Reads what was recorded, writes nothing."""
    listed = []
    for cell in found:
        files = cell.project.files()
        key = records.key_of(cell, files)
        listed.append(Order(cell, files, key, records.state(cell, key, work, out)))
    return listed


def build(
    wanted: Sequence[Order], place: Place, *, work: Path, out: Path, display: Display, fail_fast: bool = False
) -> list[Outcome]:
    """Build what is stale. Returns one outcome for each order, in order; failures are in there, not raised.

    Args:
        wanted: see `orders`.
        place: where to build.
        work: directory for projects, compiled artifacts, logs and records; kept between builds.
        out: directory that gets the wheels.
        display: told of everything.
        fail_fast: begin nothing more after a failure.

    Raises:
        UsageError: if another build uses `work`, or a directory cannot be made.
    """
    with _held(work):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{out} cannot be made: {error.strerror}") from None
        return _Build(place, work, out, display, fail_fast).run(wanted)


@contextmanager
def _held(work: Path) -> Iterator[None]:
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"{work} cannot be used to work in: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"another build is at work in {work}: wait for it, or give another --work.") from None
    else:
        yield
    finally:
        os.close(lock)


@dataclass
class _Build:
    place: Place
    work: Path
    out: Path
    display: Display
    fail_fast: bool

    def run(self, wanted: Sequence[Order]) -> list[Outcome]:
        outcomes = {order.cell.identifier: Outcome(order, begun=False) for order in wanted}
        for order in wanted:
            if not order.state.stale:
                self._note(outcomes, Outcome(order, order.state.wheel))
        waiting = [order for order in wanted if order.state.stale]
        running: dict[Future[Outcome], int] = {}
        with ThreadPoolExecutor(max_workers=max(1, min(self.place.capacity, len(waiting)))) as pool:
            try:
                while waiting or running:
                    self._start(waiting, running, pool)
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        del running[future]
                        self._note(outcomes, future.result())
                        if self.fail_fast and future.result().error:
                            waiting.clear()
            except BaseException:
                self.place.stop()
                raise
        return list(outcomes.values())

    def _note(self, outcomes: dict[str, Outcome], outcome: Outcome) -> None:
        outcomes[outcome.order.cell.identifier] = outcome
        self.display.ended(outcome)

    def _start(self, waiting: list[Order], running: dict[Future[Outcome], int], pool: ThreadPoolExecutor) -> None:
        """Start the first that fits, again and again; the largest is never starved, since it goes alone if need be."""
        for order in list(waiting):
            needs = min(weight(order.cell), self.place.capacity)
            if sum(running.values()) + needs > self.place.capacity:
                return
            waiting.remove(order)
            running[pool.submit(self._one, order)] = needs

    def _one(self, order: Order) -> Outcome:
        begun = time.monotonic()
        self.display.begun(order.cell)
        try:
            wheel = self._built(order, begun)
        except ModelCacheError as error:
            return Outcome(order, None, time.monotonic() - begun, error)
        except OSError as error:
            failure = ModelCacheError(f"{error.filename or self.work}: {error.strerror}")
            return Outcome(order, None, time.monotonic() - begun, failure)
        return Outcome(order, wheel, time.monotonic() - begun)

    def _built(self, order: Order, begun: float) -> Path:
        cell = order.cell
        directory = self._directory(order)
        made = self.place.run(cell, directory, lambda event: self.display.told(cell, event))
        if not records.is_wheel_of(cell, made.name):
            raise ModelCacheError(f"the wheel that came out has another name: {made.name}")
        content = records.content_of(made)
        records.forget(cell, self.work)
        wheel = self.out / made.name
        temporary = self.out / f".{made.name}.tmp"
        shutil.copyfile(made, temporary)  # which may be another file system
        temporary.replace(wheel)
        records.write(cell, records.Record(order.key, wheel.name, content, time.monotonic() - begun), self.work)
        shutil.rmtree(directory, ignore_errors=True)
        return wheel

    def _directory(self, order: Order) -> Path:
        """The cell's directory with its project. What was compiled from this very key before stays and is used."""
        cell = order.cell
        home = self.work / "cells" / f"{data_package(cell.name)}-{cell.version}"
        directory = home / order.key.digest[:16]
        for other in home.iterdir() if home.is_dir() else ():
            if other != directory:
                shutil.rmtree(other, ignore_errors=True)
        for part in (PROJECT, "dist"):
            shutil.rmtree(directory / part, ignore_errors=True)
        scaffold.write(order.files, directory / PROJECT)
        return directory
