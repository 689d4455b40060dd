"""What a repository on the Hub offers: one wheel for each of its branches and tags."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

from model_cache.errors import NotFoundError
from model_cache.origin import signature
from model_cache.wheel.verify import Deadline, hash_file

from .hub import Hub
from .hub_address import HubAddress
from .installing import pip_line, pull_line
from .offers import Offer, Offers, Wanted
from .pull import Found, look

__all__ = ["in_repository"]


def in_repository(address: HubAddress, hub: Hub, wanted: Wanted) -> Offers:
    """The offers of all branches and tags, or of the one that `address` names; offline, of the commits in the cache.

    Raises NotFoundError, DamagedError, ModelCacheError when the repository cannot be read.
    """
    offers = Offers()
    is_open = not hub.offline and hub.is_open(address)
    for commit in _commits(address, hub):
        pinned = address.at(commit)
        offers.look(str(pinned), "", partial(_offer, pinned, hub, wanted, is_open))
    return offers


def _commits(address: HubAddress, hub: Hub) -> Iterable[str]:
    if address.revision:
        return [hub.commit(address)]
    if hub.offline:
        return hub.cached(address)
    return dict.fromkeys(hub.refs(address).values())


def _offer(pinned: HubAddress, hub: Hub, wanted: Wanted, is_open: bool) -> Offer | str | None:
    try:
        found = look(pinned, hub)
    except NotFoundError:
        return None  # a branch without a wheel, like a `main` that only describes the others
    if not wanted.matches(found.manifest.model.id, found.manifest.model.served_as):
        return found.manifest.model.id
    sha256, size = _digest(found, hub)
    signatures = found.small.get(signature.FILE_NAME)
    keys = tuple(one.key for one in signature.parse(signatures)) if signatures else ()
    url = hub.url(pinned, found.wheel)
    # pip has no token to show to the Hub
    line = pip_line(found.manifest.name, url, sha256) if is_open else pull_line(pinned)
    return Offer(str(pinned), found.wheel, url, sha256, size, found.manifest, keys, line)


def _digest(found: Found, hub: Hub) -> tuple[str, int]:
    """(sha256, bytes) of the wheel: as the Hub lists it, else of the file, which is a small one or in the cache."""
    if found.remote and found.remote.sha256:
        return found.remote.sha256, found.remote.size
    with hub.download(found.address, found.wheel).open("rb") as file:
        return hash_file(file, os.fstat(file.fileno()).st_size, Deadline())
