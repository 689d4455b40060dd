"""A FAKE Hugging Face Hub on 127.0.0.1: serves directories as model repositories to the real huggingface_hub.

It proves nothing about the real Hub's limits, authentication, large-file storage or speed.

    with LoopbackHub({"org/name": Path("model")}) as hub:
        env = {**os.environ, **hub.environment()}    # HF_ENDPOINT and HF_HUB_DISABLE_XET for a child process

or as a program, until it is interrupted: ``python loopback_hub.py org/name=DIRECTORY [more …] [--port N]``. The first
line it prints is its endpoint.

A repository has one commit, whose name is computed from the directory's content when the fake is made, and one branch,
``main``. Modelled on the wire format that huggingface_hub 2.4.0 reads.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = r"(?P<id>[\w.-]+(?:/[\w.-]+)?)"
"""``org/name``, or ``name`` as old models have it."""


@dataclass(frozen=True)
class Request:
    """One request that was answered."""

    method: str
    path: str
    status: int


@dataclass(frozen=True)
class File:
    """One file of a repository."""

    path: Path
    size: int
    oid: str
    """Git's name of the content, which is also its ETag."""
    sha256: str | None = None
    """Of a large file, which the real Hub keeps in its large-file storage and lists by this."""

    def listed(self, name: str) -> dict[str, Any]:
        """The entry of the ``tree`` list."""
        large = {"lfs": {"oid": self.sha256, "size": self.size, "pointerSize": 134}} if self.sha256 else {}
        return {"type": "file", "path": name, "size": self.size, "oid": self.oid, **large}


@dataclass(frozen=True)
class Repository:
    """A model directory as one commit."""

    files: Mapping[str, File]
    sha: str

    @classmethod
    def of(cls, directory: Path) -> Repository:
        """Every file under `directory` but hidden ones, at the commit that their names and contents make."""
        if not directory.is_dir():
            raise NotADirectoryError(f"{directory} is no directory")
        files = {}
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            if path.is_file() and not any(part.startswith(".") for part in name.parts):
                files[name.as_posix()] = File(path, path.stat().st_size, _git_name(path))
        listing = "".join(f"{file.oid} {name}\n" for name, file in files.items())
        return cls(files, hashlib.sha1(listing.encode()).hexdigest())

    def tree(self, under: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
        """The entries that the Hub's ``tree`` lists."""
        folders: set[PurePosixPath] = set()
        for name, file in self.files.items():
            path = PurePosixPath(name)
            if under and PurePosixPath(under) not in path.parents:
                continue
            inside = len(path.parts) - len(PurePosixPath(under).parts)
            folders.update(p for p in path.parents if p.parts and str(p) != under and (recursive or inside == 2))
            if recursive or inside == 1:
                yield file.listed(name)
        for folder in sorted(folders):
            yield {"type": "directory", "path": str(folder), "size": 0, "oid": hashlib.sha1(bytes(folder)).hexdigest()}


def _git_name(path: Path) -> str:
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass
class LoopbackHub:
    """Serves `models` (repository id → directory) while it is entered.

    Attributes:
        requests: everything that was asked, in order.
        endpoint: what HF_ENDPOINT must be.
    """

    handler: ClassVar[type[Handler]]

    models: Mapping[str, Path]
    port: int = 0
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repositories = {name: Repository.of(Path(directory)) for name, directory in self.models.items()}
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:<port>``, without a slash at the end."""
        if self._server is None:
            raise RuntimeError("the hub is not running: use it in a with block")
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self) -> dict[str, str]:
        """What makes huggingface_hub ask this hub; it reads the variables when it is imported."""
        return {"HF_ENDPOINT": self.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def sha(self, model: str) -> str:
        """The commit of a repository."""
        return self.repositories[model].sha

    def at(self, name: str, revision: str) -> Repository:
        """The files of a repository at a revision. Raises MissingError."""
        repository = self.repositories.get(name)
        if repository is None:
            raise MissingError("RepoNotFound", "Repository not found")
        if revision not in ("main", repository.sha):
            raise MissingError("RevisionNotFound", f"Invalid rev id: {revision}")
        return repository

    def visibility(self, name: str) -> dict[str, bool]:
        """Who may see a repository: here everybody."""
        return {"private": False, "gated": False}

    def served(self, model: str) -> list[str]:
        """Names of the files of `model` whose content was sent, in order, each once."""
        pattern = re.compile(rf"/{re.escape(model)}/resolve/[^/]+/(.+)")
        found = (
            pattern.fullmatch(unquote(r.path)) for r in self.requests if r.method == "GET" and r.status in (200, 206)
        )
        return list(dict.fromkeys(match[1] for match in found if match))

    def __enter__(self) -> Self:
        handler = type("Handler", (self.handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", self.port), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), name="loopback hub", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error; the base class would print a traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class MissingError(Exception):
    """What is asked for is not there, or not for the one who asks; the code tells huggingface_hub which."""

    status = 404

    def __init__(self, code: str, message: str, sha: str | None = None) -> None:
        super().__init__(message)
        self.headers = {"X-Error-Code": code, "X-Error-Message": message}
        if sha:
            self.headers["X-Repo-Commit"] = sha


class Handler(BaseHTTPRequestHandler):
    """Answers as the Hub does; one object for each connection."""

    hub: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are sent one after the other

    def do_GET(self) -> None:
        """Answer GET and HEAD."""
        self.answer(b"")

    do_HEAD = do_GET  # noqa: N815 - the base class names it so

    def do_POST(self) -> None:
        """Answer POST: only paths-info asks so."""
        self.answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Quiet: `requests` has it all."""

    def answer(self, body: bytes) -> None:
        """Answer a request with this body."""
        url = urlsplit(self.path)
        routes = (
            (rf"/api/models/{REPOSITORY}/tree/(?P<revision>[^/]+)(?:/(?P<under>.*))?", self._tree),
            (rf"/api/models/{REPOSITORY}/paths-info/(?P<revision>[^/]+)", self._paths_info),
            (rf"/api/models/{REPOSITORY}/revision/(?P<revision>[^/]+)", self._info),
            (rf"/api/models/{REPOSITORY}", self._info),
            (rf"/{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", self._resolve),
        )
        try:
            for pattern, route in routes:
                match = re.fullmatch(pattern, url.path)
                if match:
                    parts = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
                    repository = self.hub.at(parts["id"], parts.pop("revision", "main"))
                    route(repository, parts, parse_qs(url.query), body)
                    return
            self.send_json(404, {"error": "This fake has no such page"})
        except MissingError as missing:
            self.send_json(missing.status, {"error": str(missing)}, missing.headers)

    def _info(self, repository: Repository, parts: dict[str, str], query: dict[str, list[str]], body: bytes) -> None:
        siblings: list[dict[str, Any]] = [{"rfilename": name} for name in repository.files]
        if query.get("blobs"):
            for sibling, file in zip(siblings, repository.files.values(), strict=True):
                sibling.update(size=file.size, blobId=file.oid)
        name = parts["id"]
        self.send_json(
            200,
            {
                "_id": hashlib.sha1(name.encode()).hexdigest()[:24],
                "id": name,
                "modelId": name,
                "author": name.partition("/")[0],
                "sha": repository.sha,
                "disabled": False,
                **self.hub.visibility(name),
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": siblings,
            },
        )

    def _tree(self, repository: Repository, parts: dict[str, str], query: dict[str, list[str]], body: bytes) -> None:
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        entries = list(repository.tree(parts.get("under", ""), recursive=recursive))
        if parts.get("under") and not entries:
            raise MissingError("EntryNotFound", f"{parts['under']} does not exist", repository.sha)
        self.send_json(200, entries)

    def _paths_info(
        self, repository: Repository, parts: dict[str, str], query: dict[str, list[str]], body: bytes
    ) -> None:
        asked = parse_qs(body.decode()) if not body.startswith(b"{") else json.loads(body)
        entries = repository.tree("", recursive=True)
        self.send_json(200, [entry for entry in entries if entry["path"] in asked.get("paths", [])])

    def _resolve(self, repository: Repository, parts: dict[str, str], query: dict[str, list[str]], body: bytes) -> None:
        file = repository.files.get(parts["name"])
        if file is None:
            raise MissingError("EntryNotFound", f"Entry not found: {parts['name']}", repository.sha)
        first, last = 0, file.size - 1
        headers = {"X-Repo-Commit": repository.sha, "ETag": f'"{file.sha256 or file.oid}"', "Accept-Ranges": "bytes"}
        status = 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and int(wanted[1]) < file.size:
            status, first = 206, int(wanted[1])
            last = min(last, int(wanted[2] or last))
            headers["Content-Range"] = f"bytes {first}-{last}/{file.size}"
        with file.path.open("rb") as content:
            content.seek(first)
            self.send_content(status, content.read(last - first + 1), "application/octet-stream", headers)

    def send_json(self, status: int, document: object, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON."""
        self.send_content(status, json.dumps(document).encode(), "application/json; charset=utf-8", headers or {})

    def send_content(
        self, status: int, content: bytes, kind: str, headers: Mapping[str, str], *, cut: int | None = None
    ) -> None:
        """Answer with `content` (its headers alone to HEAD) and note the request. cut: hang up after so many bytes."""
        self.hub.requests.append(Request(self.command, self.path, status))
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(content[:cut])
        self.close_connection |= cut is not None


LoopbackHub.handler = Handler


def main(arguments: list[str] | None = None) -> None:
    """Serve what the command line names until interrupted."""
    parser = argparse.ArgumentParser(description="A fake Hugging Face Hub on 127.0.0.1.")
    parser.add_argument("models", nargs="+", metavar="ORG/NAME=DIRECTORY")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    options = parser.parse_args(arguments)
    models = {}
    for model in options.models:
        name, sign, directory = model.partition("=")
        if not sign or not re.fullmatch(REPOSITORY, name) or not Path(directory).is_dir():
            parser.error(f"{model!r} is not ORG/NAME=DIRECTORY of an existing directory")
        models[name] = Path(directory)
    with LoopbackHub(models, port=options.port) as hub, suppress(KeyboardInterrupt):
        print(hub.endpoint, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
