"""What an index offers that knows nothing of model caches: its pages (PEP 503, PEP 691), and parts of its files."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from urllib.parse import urljoin

from hatch_model_cache.recipe.naming import distribution_name
from model_cache.engine import bounded
from model_cache.errors import DamagedError, ModelCacheError, NotFoundError
from model_cache.origin.trust import Trust
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.names import normalize, printable
from model_cache.wheel.strict_json import loads
from model_cache.wheel.verify import read_manifest

from .installing import pip_line
from .offers import Offer, Offers, Unread, Wanted, may_be_for
from .remote_wheel import RemoteWheel
from .site_offers import signers
from .web import NoPartsError, Page, Web, joined, shown, without_login

__all__ = ["Link", "in_index"]

MAX_LIST_BYTES = 16 * 1024 * 1024
MAX_PROJECT_BYTES = 4 * 1024 * 1024
MAX_PROJECTS = 40
PARSE_SECONDS = 20.0
MAX_WHEELS = 100
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_JSON = "application/vnd.pypi.simple.v1+json"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Link:
    """A file of a project. sha256: "" when the index gives none; yanked: why it is withdrawn, None when it is not."""

    file: str
    url: str
    sha256: str
    yanked: str | None = None


def in_index(url: str, web: Web, wanted: Wanted, download: int = 0) -> Offers:
    """The offers of the index at `url` (with a slash at its end), the newest version of each project first.

    download: up to how many bytes a wheel is downloaded as a whole, where the server sends no parts of files.
    Raises NotFoundError when there is no index, DamagedError, ModelCacheError.
    """
    offers, source = Offers(), shown(url)
    links = [link for project in _projects(url, web, wanted) for link in _links(url, project, web)]
    for link in links[:MAX_WHEELS]:
        offers.look(source, link.file, partial(_offer, link, source, web, wanted, download))
    offers.unread += [Unread(source, link.file, f"one of more than {MAX_WHEELS} wheels") for link in links[MAX_WHEELS:]]
    return offers


def _projects(url: str, web: Web, wanted: Wanted) -> list[str]:
    """Names of the projects that may have the wanted model's wheels."""
    try:
        page = web.page(url, MAX_LIST_BYTES, _ACCEPT)
    except (DamagedError, NotFoundError) as error:
        # an index of everything, or one without a list: a wheel's name follows from the model and the hardware
        guesses = _likely(wanted)
        if not guesses:
            raise ModelCacheError(f"{error.message}; give --target, so that the wheel's name is known") from None
        return guesses
    return may_be_for(_project_names(page), wanted)[:MAX_PROJECTS]


def _likely(wanted: Wanted) -> list[str]:
    names = (
        distribution_name(wanted.model, hardware, with_org=with_org)
        for hardware in wanted.hardware
        for with_org in (False, True)
    )
    return list(dict.fromkeys(map(normalize, names)))


def _links(url: str, project: str, web: Web) -> list[Link]:
    try:
        page = web.page(urljoin(url, f"{project}/"), MAX_PROJECT_BYTES, _ACCEPT)
    except NotFoundError:
        return []
    links = [link for link in _files(page) if _is_wheel_of(link.file, project)]
    return sorted(links, key=lambda link: _version_order(link.file), reverse=True)


def _is_wheel_of(file: str, project: str) -> bool:
    return file.endswith(".whl") and file.isascii() and normalize(file.partition("-")[0]) == project


def _version_order(file: str) -> list[tuple[int, int, str]]:
    """Enough to look at newer versions first: numbers by value. Which is the best is decided of all of them."""
    parts = re.findall(r"\d+|[a-z]+", file.split("-")[1] if file.count("-") > 1 else "")
    return [(1, int(part[:18]), "") if part.isdigit() else (0, 0, part) for part in parts]


def _project_names(page: Page) -> Iterator[str]:
    if page.kind != _JSON:
        yield from (text for text, _ in _anchors(page))
        return
    for project in _list(_document(page), "projects", page):
        if isinstance(project, dict) and isinstance(project.get("name"), str):
            yield project["name"]


def _files(page: Page) -> Iterator[Link]:
    if page.kind != _JSON:
        yield from _html_files(page)
        return
    for file in _list(_document(page), "files", page):
        if not isinstance(file, dict):
            continue
        name, url, hashes = file.get("filename"), file.get("url"), file.get("hashes")
        if isinstance(name, str) and isinstance(url, str):
            sha256 = str(hashes.get("sha256", "")) if isinstance(hashes, dict) else ""
            yanked = file.get("yanked", False)
            said = None if yanked is False or yanked is None else "" if yanked is True else printable(str(yanked))
            yield Link(name, joined(page.url, url), sha256 if _SHA256.fullmatch(sha256) else "", said)


def _document(page: Page) -> dict[str, object]:
    document = loads(page.body, shown(page.url), len(page.body))
    meta = document.get("meta") if isinstance(document, dict) else None
    version = str(meta.get("api-version")) if isinstance(meta, dict) else ""
    if not isinstance(document, dict) or not version.startswith("1."):
        raise DamagedError(f"{shown(page.url)}: is no page of a package index that is understood here")
    return document


def _list(document: dict[str, object], key: str, page: Page) -> list[object]:
    found = document.get(key)
    if not isinstance(found, list):
        raise DamagedError(f"{shown(page.url)}: has no list of {key}")
    return found


def _html_files(page: Page) -> Iterator[Link]:
    for text, attributes in _anchors(page):
        url, _, fragment = joined(page.url, attributes.get("href") or "").partition("#")
        kind, _, digest = fragment.partition("=")
        sha256 = digest if kind == "sha256" and _SHA256.fullmatch(digest) else ""
        yanked = (attributes["data-yanked"] or "") if "data-yanked" in attributes else None
        yield Link(text, url, sha256, printable(yanked) if yanked else yanked)


Attributes = dict[str, str | None]


def _anchors(page: Page) -> list[tuple[str, Attributes]]:
    parser = _Anchors()
    try:
        # html.parser can be kept busy for hours by a few megabytes that are no HTML
        bounded.call(lambda: parser.feed(page.body.decode("utf-8", "replace")), PARSE_SECONDS)
    except bounded.NoAnswerError:
        raise DamagedError(f"{shown(page.url)}: cannot be read within {PARSE_SECONDS:g} s") from None
    return parser.found


class _Anchors(HTMLParser):
    """(text, attributes) of every link."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Attributes]] = []
        self._open: tuple[list[str], Attributes] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._open = ([], dict(attrs))

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[0].append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open:
            self.found.append(("".join(self._open[0]).strip(), self._open[1]))
            self._open = None


def _offer(link: Link, source: str, web: Web, wanted: Wanted, download: int) -> Offer | str:
    if not link.sha256:
        raise DamagedError(f"the index gives no sha256 for {printable(link.file):.200}, so it cannot be pinned")
    payload, size = _payload(link, web, download)
    with payload:
        found = read_manifest(payload, Trust.of_this_host().lenient()).manifest
        if not wanted.matches(found.model.id, found.model.served_as):
            return found.model.id
        url = without_login(link.url)
        line = pip_line(found.name, url, link.sha256)
        return Offer(source, link.file, url, link.sha256, size, found, signers(payload), line, link.yanked)


def _payload(link: Link, web: Web, download: int) -> tuple[WheelPayload, int]:
    """The wheel, to be looked into, and its size in bytes."""
    try:
        remote = RemoteWheel(link.file, link.url, web)
    except NoPartsError as error:
        if error.size is None or error.size > download:
            raise
    else:
        return remote, remote.size
    data = web.page(link.url, download).body
    if hashlib.sha256(data).hexdigest() != link.sha256:
        raise DamagedError(f"{shown(link.url)}: is not the file that the index lists")
    return WheelPayload(link.file, io.BytesIO(data)), len(data)
