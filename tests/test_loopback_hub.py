"""The fake Hub, asked by the real huggingface_hub (in processes of its own: it reads HF_ENDPOINT when imported)."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.loopback_hub import LoopbackHub, Repository

MODEL = "test-org/tiny"
FAKE = Path(__file__).parent / "fakes" / "loopback_hub.py"

ASK = """
import json, sys
from pathlib import Path
from huggingface_hub import (file_exists, hf_hub_download, list_repo_files, list_repo_tree, model_info, repo_exists,
                             snapshot_download, get_paths_info)
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

model, sha = sys.argv[1:]

def refused(kind, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        return type(error).__name__
    return "nothing raised"

info = model_info(model, files_metadata=True)
snapshot = Path(snapshot_download(model, allow_patterns=["*.json"]))
print(json.dumps({
    "sha": info.sha,
    "id": info.id,
    "sizes": {s.rfilename: s.size for s in info.siblings},
    "files": sorted(list_repo_files(model)),
    "top": sorted(e.path for e in list_repo_tree(model)),
    "inside": sorted(e.path for e in list_repo_tree(model, "vocabulary")),
    "paths_info": [e.path for e in get_paths_info(model, ["config.json", "absent.json"])],
    "exists": [file_exists(model, "config.json"), file_exists(model, "absent.json"), repo_exists("test-org/absent")],
    "snapshot": sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if p.is_file()),
    "snapshot_commit": snapshot.name,
    "at_commit": Path(hf_hub_download(model, "config.json", revision=sha)).read_text(),
    "nested": Path(hf_hub_download(model, "vocabulary/words.txt")).read_text(),
    "empty": Path(hf_hub_download(model, "empty.txt")).read_bytes() == b"",
    "no_entry": refused(EntryNotFoundError, hf_hub_download, model, "absent.json"),
    "no_repository": refused(RepositoryNotFoundError, hf_hub_download, "test-org/absent", "config.json"),
    "no_repository_info": refused(RepositoryNotFoundError, model_info, "test-org/absent"),
    "no_revision": refused(RevisionNotFoundError, hf_hub_download, model, "config.json", revision="0" * 40),
    "old_style_id": model_info("old").sha is not None,
}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "vocabulary").mkdir()
    (directory / ".git").mkdir()
    for name, text in (
        ("config.json", '{"model_type": "llama"}'),
        ("vocabulary/words.txt", "one two\n"),
        ("vocabulary/more.json", "[]"),
        ("empty.txt", ""),
        ("model.safetensors", "no weights"),
        (".git/HEAD", "not served"),
    ):
        (directory / name).write_text(text)
    return directory


@pytest.fixture(scope="module")
def hub(model: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub({MODEL: model, "old": model}) as running:
        yield running


@pytest.fixture(scope="module")
def answers(hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("huggingface_hub")
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, "-c", ASK, MODEL, hub.sha(MODEL)],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **hub.environment()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


EVERYTHING = ["config.json", "empty.txt", "model.safetensors", "vocabulary/more.json", "vocabulary/words.txt"]


def test_listings(answers: dict[str, Any], hub: LoopbackHub) -> None:
    assert answers["id"] == MODEL
    assert answers["sha"] == hub.sha(MODEL)
    assert answers["files"] == EVERYTHING
    assert answers["top"] == ["config.json", "empty.txt", "model.safetensors", "vocabulary"]
    assert answers["inside"] == ["vocabulary/more.json", "vocabulary/words.txt"]
    assert answers["paths_info"] == ["config.json"]
    assert answers["sizes"]["config.json"] == len('{"model_type": "llama"}')
    assert answers["exists"] == [True, False, False]
    assert answers["old_style_id"]


def test_contents(answers: dict[str, Any], hub: LoopbackHub) -> None:
    assert answers["snapshot"] == ["config.json", "vocabulary/more.json"]
    assert answers["snapshot_commit"] == hub.sha(MODEL)
    assert answers["at_commit"] == '{"model_type": "llama"}'
    assert answers["nested"] == "one two\n"
    assert answers["empty"]


def test_what_is_missing_is_refused_as_the_hub_does(answers: dict[str, Any]) -> None:
    assert answers["no_entry"] == "RemoteEntryNotFoundError"
    assert answers["no_repository"] == answers["no_repository_info"] == "RepositoryNotFoundError"
    assert answers["no_revision"] == "RevisionNotFoundError"


def test_it_knows_what_was_served(answers: dict[str, Any], hub: LoopbackHub) -> None:
    # of an empty file huggingface_hub asks only the headers
    assert sorted(hub.served(MODEL)) == ["config.json", "vocabulary/more.json", "vocabulary/words.txt"]
    assert any(request.status == 404 for request in hub.requests)


def test_the_commit_is_computed_from_the_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = Repository.of(tmp_path).sha
    assert Repository.of(tmp_path).sha == first
    (tmp_path / "config.json").write_text("{ }")
    second = Repository.of(tmp_path).sha
    (tmp_path / "config.json").rename(tmp_path / "other.json")
    assert len({first, second, Repository.of(tmp_path).sha}) == 3


def test_part_of_a_file(hub: LoopbackHub) -> None:
    """huggingface_hub resumes a download that broke off."""
    connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"), timeout=10)
    connection.request("GET", f"/{MODEL}/resolve/main/vocabulary/words.txt", headers={"Range": "bytes=4-"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Content-Range"], answer.read()) == (206, "bytes 4-7/8", b"two\n")
    connection.close()


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/x", f"/{MODEL}/resolve/main/../../config.json"])
def test_only_files_of_the_models_are_served(hub: LoopbackHub, path: str) -> None:
    connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"), timeout=10)
    connection.request("GET", path)
    assert connection.getresponse().status == 404
    connection.close()


def test_no_endpoint_before_it_runs(model: Path) -> None:
    with pytest.raises(RuntimeError, match="with block"):
        LoopbackHub({MODEL: model}).endpoint  # noqa: B018


def test_as_a_program(model: Path) -> None:
    command = [sys.executable, str(FAKE), f"{MODEL}={model}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            endpoint = running.stdout.readline().strip()
            connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
            connection.request("HEAD", f"/{MODEL}/resolve/main/config.json")
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.headers["X-Repo-Commit"] == Repository.of(model).sha
            connection.close()
        finally:
            running.terminate()


@pytest.mark.parametrize("argument", ["tiny", "org/tiny=/no/such/directory", "a/b/c=."])
def test_as_a_program_with_wrong_arguments(argument: str) -> None:
    done = subprocess.run([sys.executable, str(FAKE), argument], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not ORG/NAME=DIRECTORY" in done.stderr
