"""`model-cache push` and `pull`: the real huggingface_hub against a fake Hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from factories import ENTRY_ONE, NAME, make_wheel
from fakes.writable_hub import TOKEN, WritableHub
from hatch_model_cache.packing.signing import generate, load_key, sign_wheel
from hatch_model_cache.publish import card, hub_address, installing, pull
from hatch_model_cache.publish.hub_address import HubAddress
from model_cache import cli
from model_cache.errors import UsageError
from model_cache.origin import keyring

REPOSITORY = "test-org/caches"
URL = f"hf://{REPOSITORY}"
OTHER_NAME = "model-cache-synthetic-1b-a100-sxm4-80gb"
PICKLED = {ENTRY_ONE: {"rank_0_0/model": pickle.dumps([b"the model"])}}

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def a_host_that_trusts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL_CACHE_TRUST", "MODEL_CACHE_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(keyring, "SYSTEM", str(tmp_path / "etc/trusted.d"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    with WritableHub(tmp_path / "the-hub") as running:
        running.patch(monkeypatch, tmp_path / "home")
        yield running


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`model-cache`: exit code, stdout, stderr. Whatever it says, a token is not in it."""

    def run_command(*words: object) -> tuple[int, str, str]:
        code = cli.main(list(map(str, words)))
        out, err = capsys.readouterr()
        assert TOKEN not in out + err
        assert "Traceback" not in err
        return code, out, err

    return run_command


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "dist")


@pytest.fixture
def pushed(hub: WritableHub, run: Run, wheel: Path) -> str:
    """The commit of a wheel that was pushed."""
    code, out, _ = run("push", wheel, URL, "--create", "--json")
    assert code == 0
    return str(json.loads(out)["commit"])


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def signed(wheel: Path, tmp_path: Path, name: str = "release") -> Path:
    """The wheel with a signature; the public key."""
    private, public, _ = generate(tmp_path / name)
    sign_wheel(wheel, load_key(str(private)))
    return public


def front_matter(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return loaded


# push


def test_one_revision_is_a_wheel_its_manifest_its_signature_and_a_card(
    hub: WritableHub, run: Run, wheel: Path, tmp_path: Path
) -> None:
    signed(wheel, tmp_path)
    code, out, err = run("push", wheel, URL, "--create")
    assert (code, err) == (0, "")
    assert hub.names(REPOSITORY) == [".gitattributes", "README.md", "manifest.json", "manifest.sig", wheel.name]
    assert hub.content(REPOSITORY, "main", wheel.name) == wheel.read_bytes()
    assert "compared  with what the Hub lists: equal" in out
    assert json.loads(hub.content(REPOSITORY, "main", "manifest.json"))["name"] == NAME


def test_every_install_line_is_pinned_to_the_commit_that_holds_the_wheel(
    hub: WritableHub, run: Run, wheel: Path
) -> None:
    code, out, _ = run("push", wheel, URL, "--create", "--json")
    answer = json.loads(out)
    commit = answer["commit"]
    assert code == 0
    assert hub.content(REPOSITORY, commit, wheel.name) == wheel.read_bytes()
    text = hub.content(REPOSITORY, "main", "README.md").decode()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    url = f"{hub.endpoint}/{REPOSITORY}/resolve/{commit}/{wheel.name}"
    lines = [f"model-cache pull {URL}@{commit} --install", f"pip install --no-deps '{NAME} @ {url}#sha256={digest}'"]
    assert answer["install"] == lines
    assert all(line in text.splitlines() for line in lines)
    assert not re.search(r"extra-index-url|@main|resolve/main", text)
    assert set(re.findall(r"[0-9a-f]{40}\b(?<![0-9a-f]{41})", text)) == {commit}


def test_the_card_says_what_the_wheel_is_for(hub: WritableHub, pushed: str) -> None:
    text = hub.content(REPOSITORY, "main", "README.md").decode()
    assert front_matter(text) == {"tags": ["model-cache", "vllm", "torch.compile", "h100-sxm5-80gb"]}
    for part in (
        "test-org/Synthetic-1B",
        "`h100-sxm5-80gb`",
        "vllm 0.33.0, torch 2.14.0+cu130, Triton 3.8.0, CUDA 13.0",
        "`/models/synthetic`",
        "signed by | nobody",
        "VLLM_USAGE_SOURCE=image vllm serve test-org/Synthetic-1B --max-num-seqs 1024",
    ):
        assert part in text, part


def test_a_manifest_cannot_write_the_card(hub: WritableHub, run: Run, tmp_path: Path) -> None:
    model = "a|b](http://x) <b> `c` [d"
    hostile = make_wheel(tmp_path / "dist", changes={"model.id": model, "serve.arguments": ["```\n# Owned", "$(id)"]})
    assert run("push", hostile, URL, "--create")[0] == 0
    text = hub.content(REPOSITORY, "main", "README.md").decode()
    assert r"| model | a\|b\](http://x) \<b\> \`c\` \[d |" in text.splitlines()
    assert text.count("```") == 8
    assert "\n# Owned" not in text
    assert "'$(id)'" in text


def test_a_wheel_that_is_there_already_makes_no_commit(hub: WritableHub, run: Run, wheel: Path, pushed: str) -> None:
    before = len(hub.branches[REPOSITORY].commits)
    code, out, _ = run("push", wheel, URL, "--json")
    assert code == 0
    assert len(hub.branches[REPOSITORY].commits) == before
    answer = json.loads(out)
    assert (answer["commit"], answer["uploaded"], answer["deleted"]) == (pushed, [], [])
    assert "is there already" in run("push", wheel, URL)[1]


def test_a_push_that_was_killed_before_its_card_is_completed(
    hub: WritableHub, run: Run, wheel: Path, pushed: str
) -> None:
    hub.commit(REPOSITORY, "main", {"README.md": None})
    code, out, _ = run("push", wheel, URL, "--json")
    assert code == 0
    assert json.loads(out)["uploaded"] == ["README.md"]
    assert f"@{json.loads(out)['commit']}" in hub.content(REPOSITORY, "main", "README.md").decode()


def test_a_card_that_installs_from_another_commit_is_written_again(
    hub: WritableHub, run: Run, wheel: Path, pushed: str
) -> None:
    text = hub.content(REPOSITORY, "main", "README.md")
    hub.commit(REPOSITORY, "main", {"README.md": text.replace(pushed.encode(), b"0" * 40)})
    code, out, _ = run("push", wheel, URL, "--json")
    assert code == 0
    assert json.loads(out)["uploaded"] == ["README.md"]
    assert b"0" * 40 not in hub.content(REPOSITORY, "main", "README.md")


def test_a_newer_version_takes_the_place_of_the_older(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path
) -> None:
    signed(wheel, tmp_path)
    assert run("push", wheel, URL)[0] == 0
    newer = make_wheel(tmp_path / "newer", version="2.0.0")
    code, out, _ = run("push", newer, URL)
    assert code == 0
    assert f"replaces  manifest.sig, {wheel.name}" in out
    assert hub.names(REPOSITORY) == [".gitattributes", "README.md", "manifest.json", newer.name]
    assert wheel.name in hub.names(REPOSITORY, pushed), "what a commit holds stays"


def test_a_branch_holds_one_wheel(hub: WritableHub, run: Run, pushed: str, tmp_path: Path) -> None:
    other = make_wheel(tmp_path / "other", name=OTHER_NAME)
    code, _, err = run("push", other, URL)
    assert code == 2
    assert f"for example {URL}@h100-sxm5-80gb" in err
    code, _, err = run("push", other, f"{URL}@a100")
    assert (code, "--create makes it" in err) == (5, True)
    code, out, _ = run("push", other, f"{URL}@a100", "--create", "--json")
    assert (code, json.loads(out)["created"]) == (0, "branch")
    assert hub.names(REPOSITORY, "a100") == [".gitattributes", "README.md", "manifest.json", other.name]
    assert other.name not in hub.names(REPOSITORY)


@pytest.mark.parametrize("rules", ["*.whl\n", "*\n", "manifest.json\nREADME.md\n"])
def test_a26_a_gitignore_in_the_repository_drops_no_file(hub: WritableHub, run: Run, wheel: Path, rules: str) -> None:
    hub.create(REPOSITORY)
    hub.commit(REPOSITORY, "main", {".gitignore": rules.encode()})
    assert run("push", wheel, URL)[0] == 0
    assert hub.names(REPOSITORY) == [".gitattributes", ".gitignore", "README.md", "manifest.json", wheel.name]


def test_a26_a_gitignore_in_the_folder_drops_no_file(hub: WritableHub, run: Run, wheel: Path) -> None:
    (wheel.parent / ".gitignore").write_text("*\n")
    assert run("push", wheel, URL, "--create")[0] == 0
    assert wheel.name in hub.names(REPOSITORY)


@pytest.mark.parametrize("lost", ["wheel", "manifest.json"])
def test_a_hub_that_does_not_hold_what_was_pushed(hub: WritableHub, run: Run, wheel: Path, lost: str) -> None:
    name = wheel.name if lost == "wheel" else lost
    hub.lose.add(name)
    code, out, err = run("push", wheel, URL, "--create")
    assert (code, out) == (3, "")
    assert f"{name} is missing" in err


def test_a_wheel_so_small_that_the_hub_keeps_it_in_git(
    hub: WritableHub, run: Run, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file is listed by git's name of it, without a sha256."""
    monkeypatch.setattr("fakes.writable_hub.LARGE_BYTES", 1_000_000)
    assert run("push", wheel, URL, "--create")[0] == 0
    assert hub.at(REPOSITORY, "main").files[wheel.name].sha256 is None
    hub.spoil.add(wheel.name)
    code, _, err = run("pull", URL, "--out", tmp_path / "out")
    assert (code, "has another content on the Hub" in err) == (3, True)
    hub.spoil.clear()
    assert run("pull", URL, "--out", tmp_path / "out")[0] == 0
    hub.lose.add(wheel.name)
    wheel.unlink()
    make_wheel(wheel.parent, PICKLED)
    code, _, err = run("push", wheel, URL)
    assert (code, f"{wheel.name} has" in err) == (3, True)


def test_a_dry_run_writes_nothing(hub: WritableHub, run: Run, wheel: Path) -> None:
    code, out, _ = run("push", wheel, URL, "--create", "--dry-run")
    assert code == 0
    assert "makes     the repository" in out
    assert not hub.branches
    hub.create(REPOSITORY)
    code, out, _ = run("push", wheel, f"{URL}@new", "--create", "--dry-run", "--json")
    answer = json.loads(out)
    assert (code, answer["created"], answer["commit"]) == (0, "branch", None)
    assert answer["uploaded"] == [wheel.name, "manifest.json", "README.md"]
    assert list(hub.branches[REPOSITORY].refs) == ["main"]
    assert {request.method for request in hub.requests} == {"GET"}


def test_a_wheel_that_is_not_intact_is_not_pushed(hub: WritableHub, run: Run, tmp_path: Path) -> None:
    def damage(files: dict[str, bytes]) -> None:
        name = next(name for name in files if "/blobs/" in name)
        files[name] = files[name][:-1] + b"x"

    code, _, err = run("push", make_wheel(tmp_path / "dist", edit_late=damage), URL, "--create")
    assert code == 3
    assert "has other content" in err
    assert not hub.branches
    assert not hub.requests


def test_a_host_that_requires_signatures_pushes_no_wheel_without(
    hub: WritableHub, run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", "require")
    assert run("push", wheel, URL, "--create")[0] == 7
    assert not hub.requests


def test_private(hub: WritableHub, run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run("push", wheel, URL, "--private")[0] == 2
    assert run("push", wheel, URL, "--private", "--create")[0] == 0
    assert hub.branches[REPOSITORY].private
    hub.patch(monkeypatch, tmp_path / "stranger", token=None)
    code, _, err = run("pull", URL, "--out", tmp_path / "out")
    assert code == 5
    assert "it is private and there is no token" in err


def test_two_pushes_at_once_lose_nothing(
    hub: WritableHub, run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import HfApi

    upload = HfApi.preupload_lfs_files

    def somebody_is_faster(api: HfApi, *args: Any, **options: Any) -> None:
        hub.commit(REPOSITORY, "main", {"theirs": b"x"})
        upload(api, *args, **options)

    hub.create(REPOSITORY)
    monkeypatch.setattr(HfApi, "preupload_lfs_files", somebody_is_faster)
    code, _, err = run("push", wheel, URL)
    assert (code, "run the command again" in err) == (1, True)
    assert hub.names(REPOSITORY) == [".gitattributes", "theirs"]


# pull


def test_a_pull_brings_the_same_bytes_and_says_the_commit_first(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path
) -> None:
    head = hub.branches[REPOSITORY].refs["main"]
    code, out, err = run("pull", URL, "--out", tmp_path / "new" / "out")
    assert code == 0
    assert err.splitlines() == [f"model-cache: {URL} is {URL}@{head}"]
    assert "compared  with what the Hub lists: equal" in out
    assert "verified  every byte; not signed: intact, origin unknown" in out
    assert [path.name for path in (tmp_path / "new" / "out").iterdir()] == [wheel.name]
    assert (tmp_path / "new" / "out" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("revision", ["commit", "tag"])
def test_other_revisions(hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path, revision: str) -> None:
    hub.branches[REPOSITORY].tags["v1"] = pushed
    name = pushed if revision == "commit" else "v1"
    code, out, _ = run("pull", f"{URL}@{name}", "--out", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["commit"] == pushed
    assert json.loads(out)["path"] == str(tmp_path / wheel.name)


def test_a_pull_into_this_directory(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run("pull", URL)[0] == 0
    assert (tmp_path / "here" / wheel.name).is_file()


def test_a_file_that_is_there_already(hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path) -> None:
    assert run("pull", URL, "--out", tmp_path)[0] == 0
    code, out, _ = run("pull", URL, "--out", tmp_path, "--json")
    assert (code, json.loads(out)["fresh"]) == (0, False)
    (tmp_path / wheel.name).write_bytes(b"mine")
    code, _, err = run("pull", URL, "--out", tmp_path)
    assert (code, "is another wheel" in err) == (2, True)
    assert (tmp_path / wheel.name).read_bytes() == b"mine"


def test_a_dry_run_downloads_no_wheel(hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path) -> None:
    code, out, _ = run("pull", URL, "--out", tmp_path / "out", "--dry-run", "--json")
    assert (code, json.loads(out)["size"]) == (0, wheel.stat().st_size)
    assert wheel.name not in hub.served(REPOSITORY)
    assert not (tmp_path / "out").exists()


def test_a_connection_that_breaks_is_taken_up_again(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)  # what breaks off in a piece is lost
    hub.break_once.add(wheel.name)
    assert run("pull", URL, "--out", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()
    answers = [r.status for r in hub.requests if r.method == "GET" and r.path.endswith(wheel.name)]
    assert answers == [200, 206], "the second asked for the rest only"


def test_nothing_damaged_lands(hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path) -> None:
    hub.spoil.add(wheel.name)
    code, _, err = run("pull", URL, "--out", tmp_path / "out")
    assert code == 3
    assert "what came is not what the Hub lists" in err
    assert not list((tmp_path / "out").iterdir())


def test_a_bad_copy_in_the_cache_is_downloaded_again(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path
) -> None:
    hub.spoil.add(wheel.name)
    assert run("pull", URL, "--out", tmp_path / "out")[0] == 3
    hub.spoil.clear()
    assert run("pull", URL, "--out", tmp_path / "out")[0] == 0


def test_nothing_untrusted_lands(
    hub: WritableHub, run: Run, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = signed(wheel, tmp_path), generate(tmp_path / "theirs")
    assert run("push", wheel, URL, "--create")[0] == 0
    out = tmp_path / "out"
    code, _, err = run("pull", URL, "--out", out, "--trust", tmp_path / "theirs.pub")
    assert (code, "origin is unknown" in err) == (7, True)
    assert not list(out.iterdir())
    wheel.unlink()
    make_wheel(wheel.parent, PICKLED)
    sign_wheel(wheel, load_key(str(tmp_path / "release.pem")))
    assert run("push", wheel, URL)[0] == 0
    code, text, _ = run("pull", URL, "--out", out, "--trust", ours)
    assert (code, "(trusted)" in text) == (0, True)


def test_files_beside_a_wheel_that_are_not_its_own(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path
) -> None:
    other = make_wheel(tmp_path / "other", version="9.9.9")
    assert run("push", other, "hf://test-org/other", "--create")[0] == 0
    hub.commit(REPOSITORY, "main", {"manifest.json": hub.content("test-org/other", "main", "manifest.json")})
    code, _, err = run("pull", URL, "--out", tmp_path / "out")
    assert (code, "manifest.json beside the wheel is another one" in err) == (3, True)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        ({"manifest.json": None}, 5, "holds no model cache wheel"),
        ({"second-1-py3-none-any.whl": b"x"}, 3, "holds 2 wheels"),
        ({"manifest.json": b"{}"}, 3, "schema_version is None"),
        ({"manifest.json": b"[" * 100_000}, 3, "nested deeper"),
        ({"manifest.sig": b"x" * 100_000}, 3, "manifest.sig is larger than"),
    ],
)
def test_what_a_revision_may_not_hold(
    hub: WritableHub,
    run: Run,
    pushed: str,
    tmp_path: Path,
    files: dict[str, bytes | None],
    code: int,
    said: str,
) -> None:
    hub.commit(REPOSITORY, "main", files)
    found, _, err = run("pull", URL, "--out", tmp_path / "out")
    assert found == code
    assert said in err
    assert not (tmp_path / "out").exists()


def test_a_wheel_larger_than_its_manifest_says_is_not_downloaded(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "_SLACK_BYTES", -pull._SLACK_BYTES)
    code, _, err = run("pull", URL, "--out", tmp_path / "out")
    assert (code, "more than its manifest accounts for" in err) == (3, True)
    assert wheel.name not in hub.served(REPOSITORY)


def test_a_name_that_is_no_file_name(hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path) -> None:
    hub.commit(REPOSITORY, "main", {wheel.name: None, "a`b`-1-py3-none-any.whl": wheel.read_bytes()})
    assert run("pull", URL, "--out", tmp_path / "out")[0] == 3


def test_a_repository_with_wheels_on_branches_only_says_which(hub: WritableHub, run: Run, wheel: Path) -> None:
    assert run("push", wheel, f"{URL}@h100", "--create")[0] == 0
    code, _, err = run("pull", URL)
    assert code == 5
    assert "its branches and tags: h100" in err


# offline


def test_a26_offline_a_commit_is_found_without_the_network(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub#4487: what was downloaded by commit has no refs/main."""
    assert run("pull", f"{URL}@{pushed}", "--out", tmp_path / "first")[0] == 0
    refs = tmp_path / "home/hub/models--test-org--caches/refs"
    assert not refs.exists()
    offline(monkeypatch)
    asked = len(hub.requests)
    code, out, _ = run("pull", f"{URL}@{pushed}", "--out", tmp_path / "second")
    assert code == 0
    assert "offline, the Hub was not asked" in out
    assert (tmp_path / "second" / wheel.name).read_bytes() == wheel.read_bytes()
    code, _, err = run("pull", URL, "--out", tmp_path / "third")
    assert code == 5
    assert err.count("\n") == 1
    assert f"give one of these commits: {pushed}" in err
    assert len(hub.requests) == asked, "no request at all"


def test_a26_offline_a_branch_is_found_that_was_pulled_by_name(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("pull", URL, "--out", tmp_path / "first")[0] == 0
    head = hub.branches[REPOSITORY].refs["main"]
    offline(monkeypatch)
    code, out, _ = run("pull", URL, "--out", tmp_path / "second", "--json")
    assert (code, json.loads(out)["commit"], json.loads(out)["compared"]) == (0, head, False)


def test_offline_what_is_not_in_the_cache(
    hub: WritableHub, run: Run, wheel: Path, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("pull", URL, "--out", tmp_path / "first")[0] == 0
    offline(monkeypatch)
    code, _, err = run("pull", f"{URL}@{'0' * 40}")
    assert (code, "no wheel of it is in the local Hub cache" in err) == (5, True)
    assert run("pull", "hf://test-org/never")[0] == 5
    code, _, err = run("push", wheel, URL)
    assert (code, "HF_HUB_OFFLINE is set" in err) == (2, True)


# what is refused


@pytest.mark.parametrize(
    "text",
    [
        "org/name",
        "hf://name",
        "hf://a/b/c",
        "hf://a/../b",
        "hf://a/b@",
        "hf://a/b@../x",
        "https://hub/a/b",
        "hf://a b/c",
    ],
)
def test_no_address(run: Run, text: str) -> None:
    code, _, err = run("pull", text)
    assert (code, "hf://ORG/NAME" in err) == (2, True)


def test_a_token_in_an_address_is_not_repeated(run: Run) -> None:
    code, _, err = run("pull", f"hf://user:{TOKEN}@org/name")  # `run` looks for it
    assert (code, "hf_***" in err) == (2, True)


def test_addresses() -> None:
    assert hub_address.parse("hf://a/b.c-d_e") == HubAddress("a/b.c-d_e")
    assert hub_address.parse("hf://a/b/@feature/x-1") == HubAddress("a/b", "feature/x-1")
    assert str(HubAddress("a/b", "c")) == "hf://a/b@c"


def test_no_such_repository(hub: WritableHub, run: Run, wheel: Path) -> None:
    for words in (("pull", URL), ("push", wheel, URL)):
        code, _, err = run(*words)
        assert code == 5
        assert err.count("\n") == 1
        assert "there is no such repository" in err


def test_no_such_revision(hub: WritableHub, run: Run, pushed: str) -> None:
    code, _, err = run("pull", f"{URL}@absent")
    assert (code, "no branch, tag or commit absent" in err) == (5, True)
    assert run("pull", f"{URL}@{'0' * 40}")[0] == 5


def test_a_gated_repository(hub: WritableHub, run: Run, pushed: str, tmp_path: Path) -> None:
    hub.branches[REPOSITORY].gated = True
    code, _, err = run("pull", URL, "--out", tmp_path / "out", "--quiet")
    assert code == 1
    assert err.count("\n") == 1
    assert f"gated: ask for access on {hub.endpoint}/{REPOSITORY}" in err


def test_a_push_without_a_token(
    hub: WritableHub, run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.patch(monkeypatch, tmp_path / "nobody", token=None)
    code, _, err = run("push", wheel, URL, "--create")
    assert (code, "needs a token" in err) == (2, True)


def test_a_token_that_the_hub_does_not_know(
    hub: WritableHub, run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.create(REPOSITORY)
    wrong = "hf_anotherTokenOfNobody"
    hub.patch(monkeypatch, tmp_path / "nobody", token=wrong)
    code, _, err = run("push", wheel, URL, "--create")
    assert (code, "does not accept the token" in err) == (1, True)
    assert wrong not in err


def test_a_commit_cannot_be_pushed_to(hub: WritableHub, run: Run, wheel: Path) -> None:
    assert run("push", wheel, f"{URL}@{'a' * 40}")[0] == 2


def test_without_the_extra(run: Run, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for words in (("push", wheel, URL), ("pull", URL)):
        code, _, err = run(*words)
        assert (code, "hatch-model-cache[hub]" in err) == (2, True)


def test_a_hub_that_is_not_there(run: Run, hub: WritableHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    code, _, err = run("pull", URL, "--out", tmp_path / "out")
    assert (code, err.count("\n")) == (1, 1)
    assert "the Hub could not be asked" in err


# install


def test_install(hub: WritableHub, run: Run, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a real environment, with its pip."""
    site = tmp_path / "site"
    command = installing.command
    monkeypatch.setattr(installing, "command", lambda wheel: [*command(wheel), "--target", str(site)])
    code, out, _ = run("pull", f"{URL}@{pushed}", "--install")
    assert code == 0
    assert f"installed {NAME} 1.0.0" in out
    assert (site / NAME.replace("-", "_").replace(".", "_") / "manifest.json").is_file()
    assert not list(Path(tempfile.gettempdir()).glob("model-cache-pull-*/*.whl"))


def test_an_installer_that_fails(hub: WritableHub, run: Run, pushed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys; print('one'); print('the reason', file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(installing, "command", lambda wheel: [sys.executable, "-c", script])
    code, _, err = run("pull", URL, "--install")
    assert (code, "could not be installed: the reason" in err) == (1, True)


def test_an_environment_without_an_installer(
    hub: WritableHub, run: Run, pushed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installing.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    code, _, err = run("pull", URL, "--install")
    assert (code, "use --out" in err) == (2, True)
    with pytest.raises(UsageError):
        installing.command(Path("x.whl"))


# as a user runs it


def test_in_a_process_of_its_own_quiet_when_piped(hub: WritableHub, wheel: Path, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **hub.settings(tmp_path / "own")}

    def model_cache(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "model_cache", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)

    done = model_cache("push", str(wheel), URL, "--create")
    assert done.stderr == ""
    commit = done.stdout.splitlines()[1].split()[-1]
    done = model_cache("pull", f"{URL}@{commit}", "--out", str(tmp_path / "out"), "--quiet")
    assert done.stderr == ""
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_commit_of_a_card() -> None:
    commit = "a" * 40
    text = f"x {URL}@{commit} y".encode()
    assert card.pinned_commit(text, HubAddress(REPOSITORY)) == commit
    assert card.pinned_commit(text, HubAddress("test-org/other")) is None
