"""What the plug-in does when something may have changed, within a deadline.

Deploy every installed wheel; finish what was killed half-way; withdraw what is not trusted any more.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Protocol

from model_cache.engine import bounded, stamp
from model_cache.errors import MismatchError, ModelCacheError, NotFoundError
from model_cache.machine import fit
from model_cache.machine.host import ASSUME_TARGET, Host, read_host
from model_cache.origin.trust import Trust
from model_cache.store import files, plan, recovery, state, withdrawal
from model_cache.store.deploy import Outcome, deploy
from model_cache.store.root import STAMPS, Root, temporary_name
from model_cache.store.state import State
from model_cache.wheel.discovery import ENGINES, Installed
from model_cache.wheel.lookup import installed
from model_cache.wheel.names import counted
from model_cache.wheel.payload import InstalledPayload
from model_cache.wheel.verify import Deadline, DeadlineError, read_manifest

SECONDS = 9.0
"""After this the work stops by itself."""

GRACE = 1.0
"""After this much more the engine's start goes on without waiting: a disk that does not answer holds a thread up, not
the engine."""


class Say(Protocol):
    """Writes one line to the engine's log."""

    def __call__(self, message: str, *, alarm: bool = False) -> None: ...


def deploy_installed(
    wheels: Sequence[Installed], root_path: str, identity: str, say: Say, seconds: float = SECONDS
) -> None:
    """Deploy each of `wheels` that is for vLLM and fits; say what happened, one line each; stamp the result.

    Returns after at most `seconds` and GRACE, whatever the disk does. Raises what went wrong unexpectedly.
    """
    voice = _Voice(say)
    try:
        bounded.call(lambda: _deploy_installed(wheels, root_path, identity, voice, seconds), seconds + GRACE)
    except bounded.NoAnswerError:
        say(f"gave up after {seconds + GRACE:g} s: {root_path} or a wheel's disk does not answer", alarm=True)
    finally:
        voice.muted = True


class _Voice:
    """Says lines until it is muted: a worker that wakes up late has nothing to say any more."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.muted = False

    def __call__(self, message: str, *, alarm: bool = False) -> None:
        if not self.muted:
            self._say(message, alarm=alarm)


def _deploy_installed(wheels: Sequence[Installed], root_path: str, identity: str, say: Say, seconds: float) -> None:
    """See `deploy_installed`.

    A failure that may pass (a full disk, a damaged wheel, a mute driver, no time) is not stamped, so the next start
    tries again.
    """
    # Before the work: a wheel that is installed meanwhile makes the stamp stale, not wrong.
    manifests = stamp.manifest_lines(wheels)
    start = _Start(root_path, Deadline(seconds), say)
    try:
        done = {wheel.name for wheel in wheels if start.deploy(wheel)}
        start.look_after(done)
    except DeadlineError:
        say(f"{start.at}: gave up after {seconds:g} s, the engine starts with what is there", alarm=True)
        return
    if start.settled:
        _write(root_path, identity, [*manifests, *start.lines], start.messages)


class _Start:
    """One closer look at a cache root.

    at: the wheel it is at; lines: for the stamp; messages: to be said at every start; settled: whether the next start
    would find the same.
    """

    def __init__(self, root_path: str, deadline: Deadline, say: Say) -> None:
        self.root_path = root_path
        self.deadline = deadline
        self.at = ""
        self.lines: list[str] = []
        self.messages: list[str] = []
        self.settled = True
        self._say = say
        self._hosts: dict[str, Host] = {}
        self._failures: list[str] = []

    def deploy(self, wheel: Installed) -> bool:
        """Deploy an installed wheel; whether all that this host may have of it is there now. Raises DeadlineError."""
        self.at = wheel.name
        try:
            self.deadline.check()
            with InstalledPayload(installed(wheel.name)) as payload:
                return self._deploy(payload)
        except MismatchError as error:
            self._settled_if_asked()
            self._repeat(": ".join(filter(None, [error.message, "; ".join(error.problems)])))
        except DeadlineError:
            raise
        except ModelCacheError as error:
            self._failed(error)
        return False

    def _deploy(self, payload: InstalledPayload) -> bool:
        known = read_manifest(payload)
        if known.manifest.engine.name not in ENGINES:
            return False
        host = self._host_of(known.manifest.engine.name)
        if outdated := fit.outdated(known.manifest.engine, host):
            # Not to be repeated: said once is enough.
            differences = "; ".join(map(str, outdated))
            self._say(f"{payload.label} is stale: {differences}; `model-cache gc` removes it", alarm=True)
            return False
        outcome = deploy(payload, self.root_path, host, quick=True, hold=True, deadline=self.deadline)
        _report(outcome, known.origin.text, self._say)
        if outcome.occupied:
            there = ", ".join(outcome.occupied)
            self._repeat(
                f"{payload.label}: not deployed: another wheel's or the engine's files are in {there}, and stay"
            )
        self.lines += _deployed_lines(self.root_path, payload.name)
        return True

    def look_after(self, done: Collection[str]) -> None:
        """Finish what killed processes have left half done, and withdraw what is not trusted any more.

        done: names of wheels that need no look. Raises DeadlineError.
        """
        try:
            with Root.open(self.root_path) as root:
                others = [one for one in state.load_all(root)[0] if one.name not in done]
                trust = Trust.of_this_host() if others else None
                judged = [(one, withdrawal.distrust(root, one, trust)) for one in others if trust]
        except NotFoundError:
            return
        except ModelCacheError as error:
            self._failed(error)
            return
        for found, reason in judged:
            self.at = found.name
            try:
                self.deadline.check()
                self._look_after(found, reason)
            except DeadlineError:
                raise
            except ModelCacheError as error:
                self._failed(error)

    def _look_after(self, found: State, reason: str) -> None:
        if found.phase == "deployed" and not reason:
            return
        if reason and found.phase in ("deployed", "withdrawn"):
            self._withdraw(found, reason)
            return
        try:
            self._say(recovery.finish(self.root_path, found, self._host_of, self.deadline), alarm=True)
        except MismatchError:
            self._settled_if_asked()  # the work of another host that shares the root
        except recovery.CannotFinishError as error:
            if not (found.superseded or reason):
                raise  # a part of one version, each entry whole: no harm in it
            self._withdraw(found, "; ".join([error.message, *error.problems[:3]]))
        else:
            self.lines += _deployed_lines(self.root_path, found.name)

    def _withdraw(self, found: State, reason: str) -> None:
        try:
            done = withdrawal.withdraw(self.root_path, found, self.deadline)
        except DeadlineError:
            raise
        except ModelCacheError as error:
            raise ModelCacheError(f"{reason}; it cannot be taken out of the engine's way: {error.message}") from error
        where = f"is in {self.root_path}/{done.kept}" if done.kept else "could not be kept"
        text = f"withdrawn from {self.root_path}: {reason}; what was deployed {where}"
        if done.left:
            text += f"; files that are not ours stay: {', '.join(done.left[:5])}"
        self._repeat(text)

    def _host_of(self, engine: str) -> Host:
        if engine not in ENGINES:
            raise MismatchError(f"{engine} does not start here")
        if engine not in self._hosts:
            assumed = os.environ.get(ASSUME_TARGET) or None
            self._hosts[engine] = read_host(engine, assumed, self.deadline.remaining())
        return self._hosts[engine]

    def _settled_if_asked(self) -> None:
        """A wheel does not fit: that stays so, unless a driver has not answered."""
        self.settled = self.settled and not any(host.hardware.failed for host in self._hosts.values())

    def _repeat(self, message: str) -> None:
        self.messages.append(message)
        self._say(message, alarm=True)

    def _failed(self, error: ModelCacheError) -> None:
        self.settled = False
        message = "; ".join([error.message, *error.problems[:3]])
        if message not in self._failures:  # one cause, such as a root that cannot be opened, is told once
            self._failures.append(message)
            self._say(message, alarm=True)


def _report(outcome: Outcome, origin: str, say: Say) -> None:
    label = f"{outcome.name} {outcome.version}"
    written = [entry for entry in outcome.entries if entry.action == "deployed"]
    restored = [entry for entry in outcome.entries if entry.action == "restored"]
    kept = [entry for entry in outcome.entries if entry.action == "kept" and entry.note == plan.SAME]
    if written:
        size = files.human(outcome.bytes_written)
        count = counted(len(written), "entry", "entries")
        say(f"deployed {label} ({count}, {size}) for {', '.join(outcome.targets)}; {origin}")
    if restored:
        say(f"{label}: restored {', '.join(e.directory for e in restored)}, which had been changed", alarm=True)
    if kept:
        say(f"{label}: left alone what was there: {', '.join(entry.directory for entry in kept)}")
    if outcome.left:
        say(f"{label}: the version before is gone; files that are not ours stay: {', '.join(outcome.left[:5])}")
    for note in outcome.notes:
        say(f"{label}: {note}", alarm=True)


def _deployed_lines(root_path: str, name: str) -> list[str]:
    with Root.open(root_path) as root:
        found = state.load(root, name)
    lines: list[str] = []
    for entry in found.entries if found else ():
        if entry.ours:
            lines += [stamp.file_line(f"{entry.directory}/{f.path}", f.size, f.mtime_ns) for f in entry.files]
        else:
            lines.append(stamp.directory_line(entry.directory))
    return lines


def _write(root_path: str, identity: str, lines: list[str], messages: list[str]) -> None:
    """Write the stamp. Where that does not work (no root yet, read-only), the next start looks again."""
    text = stamp.text(identity, lines, messages)
    if text is None:
        return
    with suppress(OSError, ModelCacheError, UnicodeEncodeError), Root.open(root_path) as root:
        if lines or state.names(root):  # else nothing of ours is left here, and shall not come back with the stamp
            _write_stamp(root, identity, text)


def _write_stamp(root: Root, identity: str, text: str) -> None:
    with files.opened(root.descriptor, stamp.DIRECTORY, []) as directory:
        assert stamp.DIRECTORY.endswith(STAMPS)
        files.write_atomically(
            directory, stamp.file_name(identity), text.encode(errors="surrogateescape"), temporary_name()
        )
        _prune(directory)


def _prune(directory: int) -> None:
    """Keep the newest stamps: hosts come and go, the root stays."""
    names = os.listdir(directory)
    if len(names) > stamp.KEEP:
        times = {name: os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime_ns for name in names}
        for name in sorted(names, key=times.__getitem__)[: -stamp.KEEP]:
            os.unlink(name, dir_fd=directory)
