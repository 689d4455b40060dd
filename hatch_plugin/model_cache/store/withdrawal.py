"""What is deployed is judged again when keys or policy change: what this host would refuse today does not stay.

A deploy asks who has signed a wheel; a key that is revoked later, or a policy that is made stricter, concerns what was
deployed before just as much, since the engine runs it at every start. So it is taken out of the engine's way, and kept:
trusted again, it comes back. Time alone takes nothing away: until when a signature counts says until when it may be
deployed.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_cache.errors import DamagedError, NotFoundError, NotTrustedError
from model_cache.origin.trust import Trust
from model_cache.store import hints, kept, leftovers, removal, staging, state
from model_cache.store.files import system_errors
from model_cache.store.root import Root
from model_cache.store.state import State
from model_cache.wheel.verify import Deadline, origin

_ENOUGH = ("trusted", "expired", "unchecked", "off")
"""Under `require`, what is deployed stays with these: who has signed it is known, or cannot be asked here."""


@dataclass(frozen=True)
class Withdrawal:
    """What was taken away. removed: entry directories; left: files in there that are not ours.

    kept: where its files are now, relative to the root; "" when they could not be kept.
    """

    name: str
    version: str
    removed: tuple[str, ...]
    left: tuple[str, ...]
    kept: str


def distrust(root: Root, found: State, trust: Trust) -> str:
    """Why this host would not deploy today what is deployed, or "" while nothing speaks against its signer."""
    try:
        with kept.open_kept(root, found.name, found.manifest_sha256) as payload:
            known = origin(payload, trust.lenient())
    except NotTrustedError as error:
        return "; ".join([error.message, *error.problems[:3]])
    except (DamagedError, NotFoundError):
        if trust.policy != "require":
            return ""
        return f"{found.name} {found.version}: nothing in {root.path} says any more who has signed it"
    if trust.policy != "require" or known.status in _ENOUGH:
        return ""
    reason = known.text.partition(": intact, origin unknown")[0]
    return f"{found.name} {found.version}: {reason}; this host requires a signature by a trusted key"


def withdraw(root_path: str, found: State, deadline: Deadline) -> Withdrawal:
    """Take all that is deployed of a wheel out of the engine's way, and keep it below `.model-cache`.

    Raises ModelCacheError when the place cannot be written to, DeadlineError.
    """
    with system_errors(root_path), Root.open(root_path, judge=True) as root, root.lock(deadline):
        now = state.require(root, found.name)
        leftovers.clean(root, now.ours())
        place = ""
        if now.phase == "withdrawn" or kept.keep(root, now, deadline):
            place = f"{kept.folder(now.name)}/{now.manifest_sha256}"
        removal.note(root, now.in_phase("withdrawn"))
        hints.take_away(root, now.name, now.hints)
        left = [path for entry in now.ours() for path in staging.take_away(root, entry, deadline)]
    return Withdrawal(now.name, now.version, tuple(e.directory for e in now.ours()), tuple(left), place)
