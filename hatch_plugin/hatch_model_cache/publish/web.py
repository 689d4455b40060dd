"""Asking web servers that nobody vouches for: bounded in bytes and time, and no credentials in what is said.

The standard library's client: `find` runs on serving hosts, where the base install has no dependencies.
"""

from __future__ import annotations

import base64
import netrc
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from typing import IO, TypeVar
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

from model_cache import __version__
from model_cache.engine import bounded
from model_cache.errors import DamagedError, ModelCacheError, NotFoundError
from model_cache.wheel.names import printable
from model_cache.wheel.verify import Deadline

__all__ = ["NoPartsError", "Page", "Web", "address", "joined", "shown", "without_login"]

T = TypeVar("T")

_PIECE = 64 * 1024
_SOCKET_SECONDS = 15.0
_PLAIN = re.compile(r"[!-~]+")
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


class NoPartsError(ModelCacheError):
    """The server sends whole files only. size: of the file in bytes, None when it does not say."""

    def __init__(self, url: str, size: int | None) -> None:
        super().__init__(f"{shown(url)}: the server sends no parts of files")
        self.size = size


@dataclass(frozen=True)
class Page:
    """An answer. url: where it came from in the end; kind: its media type, in lower case, without parameters."""

    url: str
    kind: str
    body: bytes


def shown(url: str) -> str:
    """A URL as messages name it: without credentials, query and fragment."""
    return printable(urlunsplit(_without_login(url)._replace(query="", fragment="")))


def without_login(url: str) -> str:
    """The same URL without credentials."""
    return urlunsplit(_without_login(url))


def joined(base: str, url: str) -> str:
    """`url` as it is meant on the page `base`; "" when it is none."""
    try:
        return urljoin(base, url)
    except ValueError:
        return ""


def address(url: str) -> SplitResult | None:
    """The parts of a web server's address; None if `url` is none."""
    try:
        parts = urlsplit(url)
        good = bool(parts.hostname and (parts.port is None or parts.port >= 0))
    except ValueError:  # told when host or port are asked for
        return None
    return parts if good and parts.scheme in ("http", "https") and _PLAIN.fullmatch(url) else None


def _without_login(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        return SplitResult("", "", "(no URL)", "", "")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2])


class Web:
    """Asks for files, for a limited time in all. A login in a URL, or in ~/.netrc, is shown to that host alone."""

    def __init__(self, seconds: float = 60.0) -> None:
        self._deadline = Deadline(seconds)
        self._logins: dict[tuple[str, str], tuple[str, str]] = {}
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(),
        ):
            self._opener.add_handler(handler)

    def page(self, url: str, limit: int, accept: str = "*/*") -> Page:
        """A whole file of at most `limit` bytes.

        Raises NotFoundError when there is none, DamagedError above the limit, ModelCacheError for everything else.
        """
        return self._ask(url, {"Accept": accept}, lambda answer: _page(answer, url, limit))

    def part(self, url: str, wanted: str, limit: int) -> tuple[int, bytes, int]:
        """(offset, bytes, size of the file) of the part of a file that `wanted` says ("0-99", "-100": the last 100).

        Raises NoPartsError when the server sends whole files only, and as `page` does.
        """
        headers = {"Range": f"bytes={wanted}", "Accept-Encoding": "identity"}
        return self._ask(url, headers, lambda answer: _part(answer, url, limit))

    def _ask(self, url: str, headers: dict[str, str], read: Callable[[HTTPResponse], T]) -> T:
        request = self._request(url, headers)

        def work() -> T:
            with self._opener.open(request, timeout=_SOCKET_SECONDS) as answer:
                return read(answer)

        self._deadline.check()
        left = self._deadline.remaining()
        assert left is not None
        try:
            # in a thread: a server that sends one byte now and then never runs into a socket's timeout
            return bounded.call(work, left)
        except bounded.NoAnswerError:
            raise ModelCacheError(f"{shown(url)}: no whole answer within {self._deadline.seconds:g} s") from None
        except urllib.error.HTTPError as error:
            error.close()
            raise _refusal(url, error.code) from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ModelCacheError(f"{shown(url)}: cannot be read: {printable(str(reason)):.200}") from None

    def _request(self, url: str, headers: dict[str, str]) -> urllib.request.Request:
        """Raises DamagedError when `url` is no address of a web server."""
        parts = address(url)
        if parts is None:
            raise DamagedError(f"{shown(url) or 'an empty text':.200} is no address of a web server")
        user, password = parts.username, parts.password
        origin = (parts.scheme, parts.netloc.rpartition("@")[2])
        if user:
            self._logins[origin] = (unquote(user), unquote(password or ""))
        request = urllib.request.Request(urlunsplit(_without_login(url)._replace(fragment="")))  # noqa: S310 - checked
        for name, value in {"User-Agent": f"hatch-model-cache/{__version__}", **headers}.items():
            request.add_header(name, value)
        if login := self._logins.get(origin) or _login_of(parts.hostname or ""):
            # unredirected: urllib hands other headers on to wherever a redirect leads
            token = base64.b64encode(":".join(login).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        return request


def _refusal(url: str, status: int) -> ModelCacheError:
    if status in (404, 410):
        return NotFoundError(f"{shown(url)}: there is no such page")
    if status in (401, 403):
        return ModelCacheError(f"{shown(url)}: the server wants a login, or another one: put it into ~/.netrc")
    if status == 416:
        return DamagedError(f"{shown(url)}: the server has no such part of the file")
    if status in (301, 302, 303, 307, 308):
        return ModelCacheError(f"{shown(url)}: the server leads in a circle, or to no web server")
    return ModelCacheError(f"{shown(url)}: the server answers with status {status}")


def _login_of(host: str) -> tuple[str, str] | None:
    """What ~/.netrc (or NETRC) says of a host, as pip reads it."""
    try:
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0], found[2] or "") if found else None


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = 5

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Follow to web servers only, and never from an encrypted one to one that is not."""
        if not newurl.startswith("https://" if req.full_url.startswith("https://") else ("http://", "https://")):
            raise ValueError(f"it leads to {shown(newurl):.200}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _page(answer: HTTPResponse, url: str, limit: int) -> Page:
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return Page(answer.url or url, kind, _body(answer, url, limit))


def _part(answer: HTTPResponse, url: str, limit: int) -> tuple[int, bytes, int]:
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != 206:
        length = answer.headers.get("Content-Length", "")
        raise NoPartsError(url, int(length) if length.isdecimal() and len(length) < 19 else None)
    if match is None:
        raise DamagedError(f"{shown(url)}: the server does not say which part of the file it sends")
    first, last, size = map(int, match.groups())
    body = _body(answer, url, limit)
    if not first <= last < size or len(body) != last - first + 1:
        raise DamagedError(f"{shown(url)}: the server sends another part of the file than it says")
    return first, body, size


def _body(answer: HTTPResponse, url: str, limit: int) -> bytes:
    body = bytearray()
    while len(body) <= limit and (piece := answer.read1(_PIECE)):
        body += piece
    if len(body) > limit:
        raise DamagedError(f"{shown(url)}: is larger than {limit} bytes")
    return bytes(body)
