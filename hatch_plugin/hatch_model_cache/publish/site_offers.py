"""What a static index (`model-cache index build`) or a plain directory of wheels offers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urljoin

from model_cache.errors import DamagedError, ModelCacheError, NotFoundError
from model_cache.origin.trust import Trust
from model_cache.wheel import catalogue, manifest, small_file
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.names import normalize, printable
from model_cache.wheel.payload import Payload
from model_cache.wheel.verify import Deadline, hash_file, read_manifest

from .installing import pip_line
from .offers import Offer, Offers, Wanted
from .web import Web, shown, without_login

__all__ = ["in_directory", "in_site", "signers"]


def in_site(url: str, web: Web, wanted: Wanted) -> Offers | None:
    """The offers of the catalogue at `url` (with a slash at its end); None when there is no catalogue."""
    try:
        data = web.page(urljoin(url, catalogue.FILE_NAME), catalogue.MAX_BYTES).body
    except NotFoundError:
        return None
    if not data.lstrip().startswith(b"{"):
        return None  # some servers answer every address with a page for people
    read = lambda part: web.page(urljoin(url, part), manifest.MAX_BYTES).body  # noqa: E731
    return _offers(data, shown(url), wanted, read, without_login(url))


def in_directory(directory: Path, wanted: Wanted) -> Offers:
    """The offers of a site, or of wheels, in a directory. Raises NotFoundError, DamagedError, ModelCacheError."""
    source = str(directory)
    try:
        data = small_file.read(directory / catalogue.FILE_NAME, catalogue.MAX_BYTES)
    except FileNotFoundError:
        return _wheels(directory, wanted)
    except OSError as error:
        raise ModelCacheError(f"{source}: cannot be read: {error.strerror}") from None
    return _offers(
        data,
        source,
        wanted,
        lambda part: small_file.read(directory / unquote(part), manifest.MAX_BYTES),
        f"{directory.resolve().as_uri()}/",
    )


def _offers(data: bytes, source: str, wanted: Wanted, read: Callable[[str], bytes], base: str) -> Offers:
    """What a catalogue offers. read: a file beside it by its relative URL; base: what those URLs are relative to."""
    offers = Offers()
    for one in catalogue.parse(data, f"{source}: {catalogue.FILE_NAME}").wheels:
        if wanted.matches(one.model.id, one.model.served_as):
            offers.look(source, one.file, partial(_offer, one, source, read, base))
        else:
            offers.others.add(printable(one.model.id))
    return offers


def _offer(one: catalogue.Offer, source: str, read: Callable[[str], bytes], base: str) -> Offer:
    """The manifest decides, not what the catalogue says of it."""
    what = f"{source}: manifest of {one.file}"
    try:
        data = read(one.manifest.url)
    except OSError as error:
        raise ModelCacheError(f"{what} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != one.manifest.sha256:
        raise DamagedError(f"{what} is not the one that the catalogue lists")
    found = manifest.parse(data, what)
    if (normalize(found.name), found.version) != (normalize(one.name), one.version):
        raise DamagedError(f"{what} is that of {found.name} {found.version}")
    url = urljoin(base, one.url)
    return Offer(
        source=source,
        file=one.file,
        url=url,
        sha256=one.sha256,
        size=one.size,
        manifest=found,
        keys=tuple(key.id for key in one.keys),
        install=pip_line(one.name, url, one.sha256),
        yanked=one.yanked,
    )


def _wheels(directory: Path, wanted: Wanted) -> Offers:
    if not directory.is_dir():
        raise NotFoundError(f"{printable(str(directory))}: there is no such directory")
    offers = Offers()
    for path in sorted(directory.glob("model_cache_*.whl")):
        offers.look(str(directory), path.name, partial(_of_file, path, wanted))
    return offers


def _of_file(path: Path, wanted: Wanted) -> Offer | str:
    with WheelPayload(str(path)) as payload:
        found = read_manifest(payload, Trust.of_this_host().lenient()).manifest
        if not wanted.matches(found.model.id, found.model.served_as):
            return found.model.id
        keys = signers(payload)
    with path.open("rb") as file:
        sha256, size = hash_file(file, os.fstat(file.fileno()).st_size, Deadline())
    url = path.resolve().as_uri()
    line = pip_line(found.name, url, sha256)
    return Offer(str(path.parent), path.name, url, sha256, size, found, keys, line)


def signers(payload: Payload) -> tuple[str, ...]:
    """Ids of the keys that a wheel's signature file names."""
    from model_cache.origin import signature

    if signature.FILE_NAME not in payload.files():
        return ()
    return tuple(one.key for one in signature.parse(payload.read(signature.FILE_NAME, signature.MAX_BYTES)))
