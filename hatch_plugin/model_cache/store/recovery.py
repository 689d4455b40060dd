"""What a killed process has left half done in a cache root, brought to one version before an engine looks there.

The state of a wheel is the journal: it names the version that was to be put in place and what was there before.
The new version is completed if its wheel is still there and may still be used here; else the one before comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

from model_cache.errors import DamagedError, ModelCacheError, NotFoundError, NotTrustedError
from model_cache.machine import fit
from model_cache.machine.host import Host
from model_cache.store import kept, removal, state
from model_cache.store.files import system_errors
from model_cache.store.root import Root
from model_cache.store.state import State
from model_cache.store.switch import Wanted, switch
from model_cache.wheel import manifest
from model_cache.wheel.discovery import find
from model_cache.wheel.payload import InstalledPayload, Payload
from model_cache.wheel.verify import Deadline, Verified, verify

HostOf = Callable[[str], Host]
"""This host, as far as the engine of that name goes. Raises MismatchError for an engine that nobody starts here."""


class CannotFinishError(ModelCacheError):
    """Neither the version that was begun nor the one before can be put in place."""

    kind = "half-done"


def finish(root_path: str, found: State, host_of: HostOf, deadline: Deadline) -> str:
    """Bring what `found` says is not done to its end; what was done, in words.

    A version is verified and judged as by any deploy. Raises CannotFinishError with the reasons, MismatchError when
    it is for another host, DeadlineError, ModelCacheError when the place cannot be written to.
    """
    if found.phase == "removing":
        removal.remove(found.name, root_path, deadline)
        return f"{found.name} {found.version}: completed its removal, which had been cut short"
    problems: list[str] = []
    with system_errors(root_path), Root.open(root_path, judge=True) as root:
        for payload in _candidates(root, found):
            with payload:
                try:
                    verified = kept.what_is_there(payload, verify(payload, deadline))
                except (DamagedError, NotFoundError, NotTrustedError) as error:
                    problems += [error.message, *error.problems]
                    continue
                host = host_of(verified.manifest.engine.name)
                wanted = _wanted(found, payload, verified, fit.require(verified.manifest, host, payload.label))
                with root.lock(deadline):
                    if state.load(root, found.name) == found:  # else somebody was faster
                        switch(root, wanted, deadline)
                return _told(found, verified, problems)
    raise CannotFinishError(f"{found.name} {found.version}: is half deployed, and cannot be completed", problems)


def _candidates(root: Root, found: State) -> Iterator[Payload]:
    """The version that was begun, then the one before: opened, as far as they can be had."""
    for wheel in find(found.name, [found.site]):
        payload = InstalledPayload(wheel)
        try:
            same = sha256(payload.read(manifest.FILE_NAME, manifest.MAX_BYTES)).hexdigest() == found.manifest_sha256
        except (DamagedError, OSError):
            same = False
        if same:
            yield payload
        else:
            payload.close()  # another version has been installed since
    for digest in filter(None, (found.manifest_sha256, found.previous)):
        try:
            payload = kept.open_kept(root, found.name, digest)
        except (DamagedError, NotFoundError):
            continue
        yield payload


def _wanted(found: State, payload: Payload, verified: Verified, targets: tuple[str, ...]) -> Wanted:
    site = "" if isinstance(payload, kept.KeptPayload) else found.site
    held = "" if found.held == verified.manifest_sha256 else found.held
    return Wanted(payload, verified, targets, held=held, site=site, direct=found.direct)


def _told(found: State, verified: Verified, problems: list[str]) -> str:
    version = verified.manifest.version
    if verified.manifest_sha256 == found.manifest_sha256:
        what = "brought it back" if found.phase == "withdrawn" else "completed its deploy, which had been cut short"
        return f"{found.name} {version}: {what}"
    return f"{found.name} {version}: brought it back, since {found.version} is half deployed: {'; '.join(problems[:3])}"
