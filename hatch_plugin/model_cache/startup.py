"""What the plug-in does when something may have changed: deploy every installed wheel, within a deadline."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from model_cache import files, fit, plan, stamp, state
from model_cache.deploy import Outcome, deploy
from model_cache.discovery import Installed
from model_cache.errors import MismatchError, ModelCacheError
from model_cache.host import ASSUME_TARGET, Host, read_host
from model_cache.lookup import installed
from model_cache.payload import InstalledPayload
from model_cache.root import STAMPS, Root, temporary_name
from model_cache.verify import Deadline, DeadlineError, read_manifest

SECONDS = 9.0
"""After this the work stops by itself."""

GRACE = 1.0
"""After this much more the engine's start goes on without waiting: a disk that does not answer holds a thread up, not
the engine."""

ENGINE = "vllm"


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
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _deploy_installed(wheels, root_path, identity, voice, seconds)
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=work, name="model-cache", daemon=True)
    worker.start()
    try:
        worker.join(seconds + GRACE)
    finally:
        voice.muted = True
    if failures:
        raise failures[0]
    if worker.is_alive():
        say(f"gave up after {seconds + GRACE:g} s: {root_path} or a wheel's disk does not answer", alarm=True)


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
    deadline = Deadline(seconds)
    # Before the work: a wheel that is installed meanwhile makes the stamp stale, not wrong.
    lines = stamp.manifest_lines(wheels)
    messages: list[str] = []
    host: Host | None = None
    settled = True
    for wheel in wheels:
        try:
            deadline.check()
            with InstalledPayload(installed(wheel.name)) as payload:
                known = read_manifest(payload)
                if known.manifest.engine.name != ENGINE:
                    continue
                host = host or read_host(ENGINE, os.environ.get(ASSUME_TARGET) or None, deadline.remaining())
                if outdated := fit.outdated(known.manifest.engine, host):
                    # Not stamped as a message: said once is enough.
                    differences = "; ".join(map(str, outdated))
                    say(f"{payload.label} is stale: {differences}; `model-cache gc` removes it", alarm=True)
                    continue
                outcome = deploy(payload, root_path, host, quick=True, hold=True, deadline=deadline)
            _report(outcome, known.origin.text, say)
            if outcome.occupied:
                there = ", ".join(outcome.occupied)
                messages.append(
                    f"{payload.label}: not deployed: another wheel's or the engine's files are in {there}, and stay"
                )
                say(messages[-1], alarm=True)
        except MismatchError as error:
            settled = settled and not (host and host.hardware.failed)
            messages.append(": ".join(filter(None, [error.message, "; ".join(error.problems)])))
            say(messages[-1], alarm=True)
        except DeadlineError:
            say(f"{wheel.name}: gave up after {seconds:g} s, the engine starts with what is there", alarm=True)
            return
        except ModelCacheError as error:
            settled = False
            say("; ".join([error.message, *error.problems[:3]]), alarm=True)
        else:
            lines += _deployed_lines(root_path, wheel.name)
    if settled:
        _write(root_path, identity, lines, messages)


def _report(outcome: Outcome, origin: str, say: Say) -> None:
    label = f"{outcome.name} {outcome.version}"
    written = [entry for entry in outcome.entries if entry.action == "deployed"]
    restored = [entry for entry in outcome.entries if entry.action == "restored"]
    kept = [entry for entry in outcome.entries if entry.action == "kept" and entry.note == plan.SAME]
    if written:
        size = files.human(outcome.bytes_written)
        count = f"{len(written)} {'entry' if len(written) == 1 else 'entries'}"
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
    with (
        suppress(OSError, ModelCacheError, UnicodeEncodeError),
        Root.open(root_path) as root,
        files.opened(root.descriptor, stamp.DIRECTORY, []) as directory,
    ):
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
