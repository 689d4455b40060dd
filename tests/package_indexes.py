"""Real package indexes on the loopback: pypiserver, devpi, and a static site at Python's own file server."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

USER, PASSWORD = "releases", "not-a-secret"

JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True)
class Index:
    """simple: what `--index-url` takes; upload: what `twine --repository-url` and `uv publish --publish-url` take."""

    simple: str
    upload: str = ""


def environment(home: Path, **changes: str) -> dict[str, str]:
    """The tests' environment without what would steer pip, uv or twine, and with caches of its own."""
    steering = re.compile(r"(PIP|UV|TWINE|DEVPI|MODEL_CACHE|PYTHONPATH|VIRTUAL_ENV|XDG|.*_(proxy|PROXY)$)")
    kept = {name: value for name, value in os.environ.items() if not steering.match(name)}
    own = {"HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_CONFIG": "1"}
    return kept | own | {"UV_CACHE_DIR": str(home / "uv-cache")} | changes


def run(*command: str | Path, home: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output and errors together."""
    home.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [str(part) for part in command],
        cwd=home,
        env=environment(home, **changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=180,
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def server(home: Path, url: str, *command: str | Path, seconds: int = 60, **changes: str) -> Iterator[None]:
    """A server that answers at `url` while the context lasts. seconds: that it has until then."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.log").open("wb") as log:
        running = subprocess.Popen(
            [str(part) for part in command], cwd=home, env=environment(home, **changes), stdout=log, stderr=log
        )
    try:
        for _ in range(10 * seconds):
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                assert running.poll() is None, (home / "server.log").read_text()
                time.sleep(0.1)
        else:
            raise AssertionError(f"{command[0]} does not answer:\n{(home / 'server.log').read_text()}")
        yield
    finally:
        running.terminate()
        running.wait(30)


@contextmanager
def pypiserver(home: Path) -> Iterator[Index]:
    """A pypiserver that takes uploads from USER only."""
    (home / "packages").mkdir(parents=True)
    digest = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()
    (home / "htpasswd").write_text(f"{USER}:{{SHA}}{digest}\n")
    port = free_port()
    options = ["-i", "127.0.0.1", "-p", str(port), "-P", home / "htpasswd", "-a", "update", "--disable-fallback"]
    url = f"http://127.0.0.1:{port}/"
    with server(home, url, sys.executable, "-m", "pypiserver", "run", *options, home / "packages"):
        yield Index(f"{url}simple/", url)


@contextmanager
def devpi(home: Path) -> Iterator[Index]:
    """A devpi with one index `releases/prod`, which has no other index behind it."""
    scripts, store, port = Path(sys.executable).parent, home / "store", free_port()
    done = run(scripts / "devpi-init", "--serverdir", store, "--no-root-pypi", "--root-passwd", PASSWORD, home=home)
    assert done.returncode == 0, done.stdout
    url = f"http://127.0.0.1:{port}"
    options = ["--serverdir", store, "--host", "127.0.0.1", "--port", str(port)]
    with server(home, f"{url}/+api", scripts / "devpi-server", *options):
        root = _devpi("POST", f"{url}/+login", {"user": "root", "password": PASSWORD})["result"]["password"]
        _devpi("PUT", f"{url}/{USER}", {"password": PASSWORD}, ("root", root))
        own = _devpi("POST", f"{url}/+login", {"user": USER, "password": PASSWORD})["result"]["password"]
        _devpi("PUT", f"{url}/{USER}/prod", {"type": "stage", "bases": [], "volatile": False}, (USER, own))
        yield Index(f"{url}/{USER}/prod/+simple/", f"{url}/{USER}/prod/")


def _devpi(method: str, url: str, body: Any, login: tuple[str, str] | None = None) -> Any:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if login:
        headers["X-Devpi-Auth"] = base64.b64encode(":".join(login).encode()).decode()
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class FileServer(http.server.ThreadingHTTPServer):
    """A static site in this process. asked: the paths of all requests; typed: JSON goes out as PEP 691 wants it."""

    def __init__(self, folder: Path, *, typed: bool = False) -> None:
        self.asked: list[str] = []
        self.typed = typed

        class Handler(http.server.SimpleHTTPRequestHandler):
            server: FileServer

            def do_GET(self) -> None:
                if self.server.typed and self.path.endswith("/") and JSON in self.headers.get("Accept", ""):
                    self.path += "index.json"
                self.server.asked.append(self.path)
                super().do_GET()

            def guess_type(self, path: str | os.PathLike[str]) -> str:
                return JSON if self.server.typed and str(path).endswith("index.json") else super().guess_type(path)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), lambda *a: Handler(*a, directory=str(folder)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
