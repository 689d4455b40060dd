"""A FAKE Hugging Face Hub on 127.0.0.1 that can be written to: repositories, branches, commits and large files.

It proves nothing about the real Hub's limits, Xet storage or speed. Modelled on what huggingface_hub 2.4.0 sends and
reads. Like the real one it lets a ``.gitignore`` in the repository drop files, unless the upload brings its own rules.

    with WritableHub(tmp_path / "hub") as hub:
        ...  # hub.settings() for a process, hub.patch(monkeypatch) for this one
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pytest

from fakes.loopback_hub import REPOSITORY, File, Handler, LoopbackHub, MissingError, Repository

TOKEN = "hf_aFakeTokenForTheLoopbackHub"
LARGE_BYTES = 1000
"""From this size on a file goes to the large-file storage; the real Hub's limit is higher."""


class RefusedError(MissingError):
    """The request is understood and not granted."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code, message)
        self.status = status


@dataclass
class Branches:
    """A repository with a history. commits: in the order they were made."""

    refs: dict[str, str]
    commits: dict[str, Repository]
    tags: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False


class WritableHub(LoopbackHub):
    """Keeps its files in `directory`.

    Attributes:
        branches: the repositories by id.
        break_once: names of files of which the first answer breaks off in the middle.
        spoil: names of files that are sent with one byte changed.
        lose: names of files that a commit says it has taken and has not.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__({})
        directory.mkdir(parents=True)
        self.directory = directory
        self.branches: dict[str, Branches] = {}
        self.break_once: set[str] = set()
        self.spoil: set[str] = set()
        self.lose: set[str] = set()
        self.lock = threading.Lock()

    def settings(self, home: Path, *, token: str | None = TOKEN) -> dict[str, str]:
        """Environment for a process that is to ask this hub, with a cache of its own."""
        return {
            **self.environment(),
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            **({"HF_TOKEN": token} if token else {}),
        }

    def patch(self, monkeypatch: pytest.MonkeyPatch, home: Path, *, token: str | None = TOKEN) -> None:
        """The same for this process, whose huggingface_hub has read its environment long ago."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", self.endpoint)
        template = self.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        # versions before 1.0 have copied it
        monkeypatch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "stored_tokens"))
        monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
        monkeypatch.setenv("HF_TOKEN", token or "")

    def at(self, name: str, revision: str) -> Repository:
        """The files of a repository at a branch, tag or commit."""
        found = self.branches.get(name)
        if found is None:
            raise MissingError("RepoNotFound", "Repository not found")
        sha = found.refs.get(revision) or found.tags.get(revision) or revision
        if sha not in found.commits:
            raise MissingError("RevisionNotFound", f"Invalid rev id: {revision}")
        return found.commits[sha]

    def visibility(self, name: str) -> dict[str, bool]:
        """Who may see a repository."""
        return {"private": self.branches[name].private, "gated": self.branches[name].gated}

    def create(self, name: str, *, private: bool = False, gated: bool = False) -> None:
        """A repository with its first commit, which holds .gitattributes, as the Hub makes it."""
        first = Repository(
            {".gitattributes": self.store(b"*.whl filter=lfs\n")}, hashlib.sha1(name.encode()).hexdigest()
        )
        self.branches[name] = Branches({"main": first.sha}, {first.sha: first}, private=private, gated=gated)

    def commit(self, name: str, branch: str, files: Mapping[str, bytes | None]) -> str:
        """Commit files (None: delete); returns the commit. What `lose` names is left out."""
        repository = self.branches[name]
        before = repository.commits[repository.refs[branch]]
        after = dict(before.files)
        for path, content in files.items():
            if content is None:
                after.pop(path, None)
            elif path not in self.lose:
                after[path] = self.store(content)
        sha = hashlib.sha1(f"{before.sha} {sorted((n, f.oid) for n, f in after.items())}".encode()).hexdigest()
        repository.commits[sha] = Repository(after, sha)
        repository.refs[branch] = sha
        return sha

    def store(self, content: bytes) -> File:
        """Keep bytes, the large ones by their sha256."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self.directory / sha256
        path.write_bytes(content)
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return File(path, len(content), oid, sha256 if len(content) >= LARGE_BYTES else None)

    def content(self, name: str, revision: str, path: str) -> bytes:
        """The bytes of a file."""
        return self.at(name, revision).files[path].path.read_bytes()

    def names(self, name: str, revision: str = "main") -> list[str]:
        """The files of a revision."""
        return sorted(self.at(name, revision).files)


class _Handler(Handler):
    @property
    def _hub(self) -> WritableHub:
        return cast(WritableHub, self.hub)

    def do_PUT(self) -> None:  # noqa: N802 - the base class of the base class names it so
        """Take a large file."""
        body = self._body()
        sha256 = hashlib.sha256(body).hexdigest()
        if self.path != f"/_lfs/{sha256}":
            self.send_json(400, {"error": "the content has another sha256"})
            return
        self._hub.store(body)
        self.send_json(200, {})

    def do_POST(self) -> None:  # noqa: N802
        """Answer POST."""
        self.answer(self._body())

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, body: bytes) -> None:
        """Answer what writing needs; reading is the other fake's."""
        path = urlsplit(self.path).path
        routes = (
            ("POST", r"/api/validate-yaml", self._validate),
            ("POST", r"/api/repos/create", self._create),
            ("POST", rf"/api/models/{REPOSITORY}/branch/(?P<revision>[^/]+)", self._branch),
            ("GET", rf"/api/models/{REPOSITORY}/refs", self._refs),
            ("GET", rf"/api/models/{REPOSITORY}/commits/(?P<revision>[^/]+)", self._commits),
            ("POST", rf"/api/models/{REPOSITORY}/preupload/(?P<revision>[^/]+)", self._preupload),
            ("POST", rf"/{REPOSITORY}\.git/info/lfs/objects/batch", self._batch),
            ("POST", rf"/api/models/{REPOSITORY}/commit/(?P<revision>[^/]+)", self._commit),
        )
        try:
            with self._hub.lock:
                for method, pattern, route in routes:
                    match = re.fullmatch(pattern, path)
                    if match and method == self.command:
                        parts = {key: unquote(value) for key, value in match.groupdict().items()}
                        self._permit(parts.get("id"), write=method == "POST")
                        self.send_json(200, route(parts, body))
                        return
                match = re.match(rf"(?:/api/models)?/{REPOSITORY}(?:/|$)", path)
                self._permit(match["id"] if match else None, write=False, content="/resolve/" in path)
        except MissingError as missing:
            self.send_json(missing.status, {"error": str(missing)}, missing.headers)
            return
        super().answer(body)

    def _permit(self, name: str | None, *, write: bool, content: bool = False) -> None:
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if given and given != TOKEN:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        repository = self._hub.branches.get(name or "")
        if repository and repository.private and not given:
            raise RefusedError(401, "RepoNotFound", "Repository not found")
        if repository and repository.gated and content:
            raise RefusedError(403, "GatedRepo", "Access to this model is restricted")
        if write and not given:
            raise RefusedError(401, "", "Unauthorized")

    def send_content(self, status: int, content: bytes, kind: str, headers: Mapping[str, str]) -> None:
        """Answer, perhaps broken or spoilt."""
        name = unquote(urlsplit(self.path).path.rpartition("/")[2])
        if self.command == "GET" and status in (200, 206) and "/resolve/" in self.path:
            if name in self._hub.spoil:
                content = content[:-1] + bytes([content[-1] ^ 1])
            if name in self._hub.break_once:
                self._hub.break_once.discard(name)
                super().send_content(status, content, kind, headers, cut=len(content) // 2)
                return
        super().send_content(status, content, kind, headers)

    def _validate(self, parts: dict[str, str], body: bytes) -> object:
        if not json.loads(body)["content"].startswith("---\n"):
            raise RefusedError(400, "", "no front matter")
        return {"warnings": []}

    def _create(self, parts: dict[str, str], body: bytes) -> object:
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self._hub.branches:
            raise RefusedError(409, "", "You already created this model repo")
        self._hub.create(name, private=wanted.get("private") or wanted.get("visibility") == "private")
        return {"url": f"{self._hub.endpoint}/{name}", "name": name, "id": "0"}

    def _repository(self, parts: dict[str, str]) -> Branches:
        if parts["id"] not in self._hub.branches:
            raise MissingError("RepoNotFound", "Repository not found")
        return self._hub.branches[parts["id"]]

    def _branch(self, parts: dict[str, str], body: bytes) -> object:
        repository = self._repository(parts)
        start = json.loads(body).get("startingPoint", "main")
        repository.refs[parts["revision"]] = self._hub.at(parts["id"], start).sha
        return {}

    def _refs(self, parts: dict[str, str], body: bytes) -> object:
        repository = self._repository(parts)

        def refs(kind: str, found: Mapping[str, str]) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": sha} for n, sha in found.items()]

        return {"branches": refs("heads", repository.refs), "tags": refs("tags", repository.tags), "converts": []}

    def _commits(self, parts: dict[str, str], body: bytes) -> object:
        newest_first = reversed(self._repository(parts).commits)
        return [
            {"id": sha, "title": "", "message": "", "authors": [], "date": "2026-01-01T00:00:00.000Z"}
            for sha in newest_first
        ]

    def _preupload(self, parts: dict[str, str], body: bytes) -> object:
        wanted = json.loads(body)
        there = self._hub.at(parts["id"], parts["revision"]).files
        rules = wanted.get("gitIgnore")
        if rules is None and ".gitignore" in there:
            rules = there[".gitignore"].path.read_text()
        return {"files": [_upload_mode(file, there, rules or "") for file in wanted["files"]]}

    def _batch(self, parts: dict[str, str], body: bytes) -> object:
        return {"transfer": "basic", "objects": list(self._objects(json.loads(body)["objects"]))}

    def _objects(self, wanted: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for one in wanted:
            known = (self._hub.directory / one["oid"]).is_file()
            upload = {"actions": {"upload": {"href": f"{self._hub.endpoint}/_lfs/{one['oid']}"}}}
            yield {"oid": one["oid"], "size": one["size"], **({} if known else upload)}

    def _commit(self, parts: dict[str, str], body: bytes) -> object:
        lines = [json.loads(line) for line in body.splitlines()]
        repository, branch = self._repository(parts), parts["revision"]
        if branch not in repository.refs:
            raise MissingError("RevisionNotFound", f"Invalid rev id: {branch}")
        parent = lines[0]["value"].get("parentCommit")
        if parent and parent != repository.refs[branch]:
            raise RefusedError(412, "", "A commit has happened since")
        files: dict[str, bytes | None] = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = (self._hub.directory / value["oid"]).read_bytes()
            else:
                files[value["path"]] = None
        sha = self._hub.commit(parts["id"], branch, files)
        return {"commitUrl": f"{self._hub.endpoint}/{parts['id']}/commit/{sha}", "commitOid": sha}


def _upload_mode(file: Mapping[str, Any], there: Mapping[str, File], rules: str) -> dict[str, Any]:
    patterns = [line for line in rules.splitlines() if line and not line.startswith("#")]
    remote = there.get(file["path"])
    return {
        "path": file["path"],
        "uploadMode": "lfs" if file["size"] >= LARGE_BYTES else "regular",
        "shouldIgnore": any(fnmatch(file["path"], pattern) for pattern in patterns),
        "oid": (remote.sha256 or remote.oid) if remote else None,
    }


WritableHub.handler = _Handler
