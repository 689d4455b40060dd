"""A web server on 127.0.0.1 for the tests of `find`: pages, whole files or parts of them, and bad manners on demand."""

from __future__ import annotations

import base64
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass
class WebServer:
    """Serves `pages` while it is entered.

    Attributes:
        pages: path → (media type, bytes).
        ranges: whether it sends parts of files.
        login: ``user:password`` that it wants, "" for none.
        redirects: path → where it sends to.
        content_range: what it says of a part instead of the truth, "" for the truth.
        drip: paths of which one byte is sent every 50 ms.
        requests: (path, its Range header, whether it had a login) of each request.
    """

    pages: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    ranges: bool = True
    login: str = ""
    redirects: dict[str, str] = field(default_factory=dict)
    content_range: str = ""
    drip: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, bool]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def sent(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(path == asked for asked, _, _ in self.requests)

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"web": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    web: WebServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Quiet."""

    def do_GET(self) -> None:
        """Answer GET."""
        wanted, given = self.headers.get("Range", ""), self.headers.get("Authorization", "")
        self.web.requests.append((self.path, wanted, bool(given)))
        if self.web.login and given != f"Basic {base64.b64encode(self.web.login.encode()).decode()}":
            self._send(401, {}, b"")
        elif self.path in self.web.redirects:
            self._send(302, {"Location": self.web.redirects[self.path]}, b"")
        elif self.path in self.web.pages:
            self._page(wanted)
        else:
            self._send(404, {}, b"")

    def _page(self, wanted: str) -> None:
        kind, body = self.web.pages[self.path]
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted) if self.web.ranges else None
        if not match:
            self._send(200, {"Content-Type": kind}, body)
            return
        first = int(match[1]) if match[1] else max(0, len(body) - int(match[2]))
        last = min(int(match[2]), len(body) - 1) if match[1] and match[2] else len(body) - 1
        said = self.web.content_range or f"bytes {first}-{last}/{len(body)}"
        self._send(206, {"Content-Range": said}, body[first : last + 1])

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            if self.path not in self.web.drip:
                self.wfile.write(body)
                return
            for number in range(len(body)):
                self.wfile.write(body[number : number + 1])
                time.sleep(0.05)
        except ConnectionError:
            self.close_connection = True
