from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fake_driver
from factories import (
    A100,
    BIG,
    ENTRY_ONE,
    ENTRY_TWO,
    H100,
    MODEL,
    NAME,
    expected_files,
    files_of,
    install,
    make_engine,
    make_site,
    make_wheel,
    sha,
)
from model_cache import __version__, cli
from model_cache.cli import main
from model_cache.wheel.names import data_package
from model_cache.wheel.verify import blob_path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = data_package(NAME)
PYTHON = ".".join(map(str, sys.version_info[:3]))
HERE = {"engine.python": PYTHON, "engine.platform": f"linux_{os.uname().machine}"}
OTHER = "model-cache-other-a100-sxm4-80gb"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def site(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image with an engine and one wheel, and no GPU."""
    site = make_site(tmp_path, changes=HERE)
    monkeypatch.setattr(sys, "path", [str(site), str(make_engine(tmp_path / "engine")), *sys.path])
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(root))
    (tmp_path / "no-driver").mkdir()
    (tmp_path / "no-driver/libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "no-driver"))
    monkeypatch.delenv("MODEL_CACHE_ASSUME_TARGET", raising=False)
    return site


@pytest.fixture
def assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", "h100-sxm5-80gb")


class Ran:
    """One run of the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
        self.code = main(arguments)
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *arguments: Ran(capsys, arguments)


# list, inspect


def test_list_without_wheels(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("list")
    assert (done.code, done.err) == (0, "")
    assert done.out == "no model cache wheel is installed in this Python environment\n"
    assert run("list", "--json").json == {"wheels": [], "direct": []}


def test_list(site: Path, run: Any) -> None:
    (site / "model_cache_broken-1.dist-info").mkdir()
    done = run("list")
    assert (done.code, done.err) == (0, "")
    head, broken, row = done.out.splitlines()
    assert head.split() == ["NAME", "VERSION", "MODEL", "ENGINE", "TARGETS", "SIZE"]
    assert row.split() == [NAME, "1.0.0", MODEL, "vllm", "0.33.0", "h100-sxm5-80gb", "4.1", "kB"]
    assert broken.startswith("model-cache-broken  ")
    assert "damaged: " in broken
    (first, second) = run("list", "--json").json["wheels"]
    assert first["problem"]
    assert second == {
        "name": NAME,
        "version": "1.0.0",
        "location": str(site),
        "model": MODEL,
        "engine": "vllm 0.33.0",
        "targets": ["h100-sxm5-80gb"],
        "size": 4119,
        "problem": None,
        "stale": [],
    }


@pytest.mark.parametrize("text", ["{", "[]", '{"model": 1}', "[" * 100_000, '{"entries": [{"files": 3}]}', "\xff"])
def test_list_survives_any_manifest(site: Path, run: Any, text: str) -> None:
    (site / PACKAGE / "manifest.json").write_text(text, encoding="latin-1")
    done = run("list")
    assert done.code == 0
    assert "damaged: its manifest cannot be read" in done.out


@pytest.mark.parametrize("size", ["Infinity", "NaN", "1e999", "9" * 400, "-1", '"11"', "null"])
def test_a_wheel_with_an_absurd_size_hides_no_other(site: Path, run: Any, tmp_path: Path, size: str) -> None:
    install(make_wheel(tmp_path / "other", name=OTHER, changes=HERE), site)
    manifest = site / PACKAGE / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"size": 11', b'"size": ' + size.encode()))
    done = run("list")
    assert done.code == 0
    assert "damaged: its manifest cannot be read" in done.out
    assert OTHER in done.out


def test_list_survives_what_no_terminal_can_show(site: Path, tmp_path: Path) -> None:
    manifest = site / PACKAGE / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(json.dumps(MODEL).encode(), b'"\\ud800\\u001b"'))
    os.mkdir(os.fsencode(site) + b"/model_cache_\xff-1.dist-info")  # noqa: PTH102
    path = os.pathsep.join([str(site), str(REPOSITORY / "hatch_plugin")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8:strict"}
    line = [sys.executable, "-m", "model_cache", "list"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert "\\ud800\\x1b" in done.stdout
    assert "model-cache-\\udcff" in done.stdout


def test_inspect_of_a_file_and_of_an_installed_wheel(site: Path, run: Any, tmp_path: Path) -> None:
    wheel = next((tmp_path / "dist").iterdir())
    done = run("inspect", NAME)
    assert (done.code, done.err) == (0, "")
    for part in (
        f"{NAME} 1.0.0",
        f"model      {MODEL}",
        "served as  test-org/Synthetic-1B, /models/synthetic",
        "engine     vllm 0.33.0, torch 2.14.0+cu130, triton 3.8.0, CUDA 13.0",
        "NVIDIA H100 80GB HBM3 (compute capability 9.0, 132 SMs; without a source: total_memory)",
        "serve      --max-num-seqs 1024",
        "VLLM_USAGE_SOURCE=image",
        "entries    2, 3 distinct files, 4.1 kB; 4.1 kB more if equal files of ranks and names were not stored once",
        "can run    bytecode (4 files), pickle (4 files) when an engine loads it",
        "built      cross by hatch-model-cache 0.1.0",
        "warning: total_memory has no source",
        "flashinfer-python=0.7.2, nvcc=absent, peer_access=False",
        ENTRY_ONE,
    ):
        assert part in done.out, part
    assert run("inspect", str(wheel)).out == done.out
    data = run("inspect", str(wheel), "--json").json
    assert data["manifest"]["model"]["id"] == MODEL
    assert data["manifest_sha256"] == sha((site / PACKAGE / "manifest.json").read_bytes())


def test_what_a_wheel_says_cannot_steer_the_terminal(tmp_path: Path, run: Any) -> None:
    wheel = make_wheel(tmp_path, changes={"build.warnings": ["\x1b[2Jred\nforged line"], "model.id": "a\u009bb"})
    done = run("inspect", str(wheel))
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\u009b" not in done.out
    assert "\\x1b[2Jred\\x0aforged line" in done.out
    wheel = make_wheel(tmp_path, changes={"model.\x1b[2J\nforged": 1})
    done = run("verify", str(wheel))
    assert done.code == 3
    assert done.err.endswith("\n  - model.\\x1b[2J\\x0aforged is not known\n")


# verify


def test_verify(site: Path, run: Any, tmp_path: Path) -> None:
    wheel = next((tmp_path / "dist").iterdir())
    done = run("verify")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"intact: {NAME} 1.0.0 (3 files, 4.1 kB); not signed: intact, origin unknown\n"
    data = run("verify", str(wheel), NAME, "--json").json
    assert [row["status"] for row in data["wheels"]] == ["intact", "intact"]
    assert data["wheels"][0]["bytes"] == 4119
    assert run("verify", NAME, "--quiet").out == ""


def test_verify_names_every_damaged_file_of_every_wheel(site: Path, run: Any) -> None:
    (site / PACKAGE / blob_path(sha(BIG))).write_bytes(bytes(len(BIG)))
    (site / PACKAGE / "extra").touch()
    done = run("verify", NAME)
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"model-cache: {NAME} 1.0.0: does not agree with its manifest\n  - extra is not listed")
    (site / PACKAGE / "extra").unlink()
    done = run("verify", NAME, "model-cache-x", "--json")
    assert done.code == 3
    assert done.json["error"]["kind"] == "damaged"
    assert [row["status"] for row in done.json["wheels"]] == ["damaged", "not-found"]
    assert "has other content" in done.json["wheels"][0]["problems"][1]


def test_verify_takes_a_directory_of_wheels(
    site: Path, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wheels = [make_wheel(tmp_path / "out", changes=HERE), make_wheel(tmp_path / "out", name=OTHER)]
    for word in ("out", "out/", str(tmp_path / "out")):
        answer = run("verify", word, "--json")
        assert answer.code == 0
        assert [row["name"] for row in answer.json["wheels"]] == sorted([NAME, OTHER])
    wheels[0].write_bytes(b"")
    assert run("verify", "out").code == 3
    (tmp_path / NAME).mkdir()  # a name is an installed wheel's
    assert run("verify", NAME).code == 0
    done = run("verify", f"./{NAME}")
    assert (done.code, done.err) == (5, f"model-cache: ./{NAME}: holds no wheel\n")


def test_verify_what_was_deployed(site: Path, root: Path, run: Any, assumed: None) -> None:
    assert run("verify", NAME, "--root", str(root)).code == 5
    run("deploy")
    (root / ENTRY_ONE / "inductor_cache").mkdir()  # a warm start adds files
    (root / ENTRY_ONE / "inductor_cache/x").touch()
    done = run("verify", NAME, "--root", str(root), "--json")
    assert done.code == 0
    assert done.json["wheels"][0]["deployed"] == 4
    assert done.json["wheels"][0]["deployed_version"] == "1.0.0"
    lines = run("verify", NAME, "--root", str(root)).out.splitlines()
    assert lines[1:] == [f"  intact in {root}: {NAME} 1.0.0 (4 files)"]
    (root / ENTRY_ONE / "rank_0_0/model").write_bytes(b"")
    (root / ENTRY_TWO / "rank_0_0/model").unlink()
    done = run("verify", NAME, "--root", str(root))
    assert done.code == 3
    assert f"{ENTRY_ONE}/rank_0_0/model has other content" in done.err
    assert f"{ENTRY_TWO}/rank_0_0/model is missing" in done.err
    assert "`model-cache deploy" in done.err
    assert run("deploy").code == 0
    assert run("verify", NAME, "--root", str(root)).code == 0


def test_a_wheel_in_whose_place_another_is_is_not_intact(
    site: Path, root: Path, run: Any, assumed: None, tmp_path: Path
) -> None:
    contents = {ENTRY_ONE: {"rank_0_0/model": b"another"}, ENTRY_TWO: {"rank_0_0/model": b"one more"}}
    install(make_wheel(tmp_path / "other", contents, name="model-cache-second-h100-sxm5-80gb", changes=HERE), site)
    assert run("deploy", NAME).code == 0
    done = run("deploy", "model-cache-second-h100-sxm5-80gb")
    assert (done.code, done.err.count("\n")) == (1, 3)
    assert "2 of 2 entries are not deployed: another wheel's or the engine's files are in their places" in done.err
    first, second = run("status", "--json").json["wheels"]
    if first["name"] != NAME:
        first, second = second, first
    assert (first["intact"], first["others"]) == (True, [])
    assert (second["intact"], second["others"]) == (False, [ENTRY_ONE, ENTRY_TWO])
    assert f"  {ENTRY_ONE}: not its own, another wheel's or the engine's files are there\n" in run("status").out
    done = run("verify", "model-cache-second-h100-sxm5-80gb", "--root", str(root))
    assert done.code == 3
    assert f"{ENTRY_ONE}: another wheel's or the engine's files are there" in done.err
    assert run("verify", NAME, "--root", str(root)).code == 0


def test_what_was_asked_for_by_name_and_is_not_there_is_an_error(
    site: Path, root: Path, run: Any, assumed: None, tmp_path: Path
) -> None:
    """An engine has compiled under the same key before: its files stay, and nobody is told that the wheel is there."""
    compiled = root / ENTRY_ONE / "rank_0_0/model"
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"compiled here")
    for dry_run in (["--dry-run"], []):
        done = run("deploy", NAME, "--json", *dry_run)
        assert (done.code, done.json["error"]["kind"], done.json["error"]["problems"]) == (1, "occupied", [ENTRY_ONE])
        [row] = done.json["wheels"]
        assert row["outcome"] == "occupied"
        assert [entry["action"] for entry in row["entries"]] == ["kept", "deployed"]
    assert compiled.read_bytes() == b"compiled here"
    # Whatever fits was asked for: the engine starts warm with what it has compiled, so no start script may fail.
    done = run("deploy")
    assert (done.code, done.err) == (0, "")
    assert f"  {ENTRY_ONE} was already there with other content\n" in done.out
    shutil.rmtree(root / ENTRY_ONE)
    assert run("deploy", NAME).code == 0


def test_what_others_have_put_there_with_the_same_content_is_intact(
    site: Path, root: Path, run: Any, assumed: None
) -> None:
    run("deploy")
    shutil.rmtree(root / ".model-cache")
    run("deploy")
    assert run("status", "--json").json["wheels"][0]["intact"]
    assert run("verify", NAME, "--root", str(root), "--json").json["wheels"][0]["deployed"] == 4


# deploy, remove


def test_deploy_and_remove(site: Path, root: Path, run: Any, assumed: None) -> None:
    done = run("deploy")
    assert (done.code, done.err) == (0, "")
    told = f"deployed: {NAME} 1.0.0 (2 entries, 8.2 kB) for h100-sxm5-80gb in {root}\n"
    assert done.out == f"{told}  not signed: intact, origin unknown\n"
    assert files_of(root) == expected_files()
    assert run("deploy", NAME).out.startswith("unchanged: ")
    data = run("deploy", "--json").json
    assert data["root"] == str(root)
    (row,) = data["wheels"]
    assert (row["outcome"], row["targets"], row["bytes_written"]) == ("unchanged", ["h100-sxm5-80gb"], 0)
    assert row["entries"][0] == {"directory": ENTRY_ONE, "action": "unchanged", "note": ""}
    done = run("remove", NAME.upper())
    assert done.code == 0
    assert "is still installed: the next engine start deploys it again" in done.out
    assert list(root.iterdir()) == []
    assert run("remove", NAME).code == 5


def test_deploy_to_another_root(site: Path, root: Path, run: Any, assumed: None, tmp_path: Path) -> None:
    assert run("deploy", "--root", str(tmp_path / "elsewhere"), "--quiet").out == ""
    assert files_of(tmp_path / "elsewhere") == expected_files()
    assert not root.exists()
    assert run("remove", NAME, "--root", str(tmp_path / "elsewhere"), "--json").json["wheels"][0]["removed"]


def test_dry_run(site: Path, root: Path, run: Any, assumed: None) -> None:
    done = run("deploy", "--dry-run")
    assert done.out.startswith("would be deployed: ")
    assert not root.exists()


def test_without_a_gpu_deploy_refuses_and_says_why(site: Path, root: Path, run: Any) -> None:
    done = run("deploy", NAME)
    assert (done.code, done.out) == (4, "")
    assert f"{NAME} 1.0.0 does not fit this host" in done.err
    assert "GPU is not visible (no CUDA driver is installed" in done.err
    done = run("deploy", "--json")
    assert done.code == 4
    assert done.json["error"]["kind"] == "mismatch"
    (row,) = done.json["wheels"]
    (difference,) = row["differences"]
    assert difference["field"] == "GPU"
    assert difference["wheel"] == "h100-sxm5-80gb"
    assert not root.exists()


def test_an_assumed_target_must_be_one_of_the_wheels(site: Path, root: Path, run: Any) -> None:
    assert run("deploy", "--assume-target", "h100-sxm5-80gb").code == 0
    done = run("deploy", "--assume-target", "b200")
    assert done.code == 4
    assert "target is b200, the wheel was built for h100-sxm5-80gb" in done.err
    assert run("deploy", "--assume-target", "B 200").code == 2


def test_a_visible_gpu_decides(
    site: Path, root: Path, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driver").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_driver.build(tmp_path / "driver")))
    monkeypatch.setenv("FAKE_GPUS", fake_driver.spec(H100 | {"device_name": "NVIDIA H200"}))
    done = run("deploy", NAME)
    assert done.code == 4
    assert "device_name is 'NVIDIA H200', the wheel was built for 'NVIDIA H100 80GB HBM3'" in done.err
    assert not root.exists()
    monkeypatch.setenv("FAKE_GPUS", fake_driver.spec(H100))
    assert run("deploy", NAME).code == 0


def test_without_names_whatever_fits_is_deployed(
    site: Path, root: Path, run: Any, assumed: None, tmp_path: Path
) -> None:
    install(make_wheel(tmp_path / "dist", name=OTHER, targets=(A100,), changes=HERE), site)
    done = run("deploy")
    assert done.code == 0
    assert f"{OTHER} 1.0.0 does not fit this host" in done.out
    assert [row["outcome"] for row in run("deploy", "--json").json["wheels"]] == ["mismatch", "unchanged"]
    assert run("deploy", OTHER).code == 4
    (site / data_package(OTHER) / "manifest.json").write_text("{}")
    done = run("deploy")
    assert done.code == 3
    assert "unchanged: " in done.out


def test_deploy_of_damage_writes_nothing(site: Path, root: Path, run: Any, assumed: None) -> None:
    (site / PACKAGE / blob_path(sha(BIG))).write_bytes(bytes(len(BIG)))
    assert run("deploy").code == 3
    assert not root.exists()


def test_remove_names_what_stays(site: Path, root: Path, run: Any, assumed: None) -> None:
    run("deploy")
    (root / ENTRY_ONE / "added").touch()
    before = files_of(root)
    done = run("remove", NAME, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"would be removed: {NAME} 1.0.0 (2 entries) from {root}\n")
    assert f"  would be left, not ours: {ENTRY_ONE}/added\n" in done.out
    told = run("remove", NAME, "--dry-run", "--json").json
    assert files_of(root) == before
    assert run("verify", NAME, "--root", str(root)).code == 0
    real = run("remove", NAME, "--json").json
    assert told == {**real, "dry_run": True}
    assert files_of(root) == {f"{ENTRY_ONE}/added": b""}
    assert run("remove", NAME, "--dry-run").code == 5
    run("deploy")
    done = run("remove", NAME)
    assert done.code == 0
    assert f"  left, not ours: {ENTRY_ONE}/added\n" in done.out


# Errors, exit codes, help


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("inspect", "model-cache-x"), 5, "not-found"),
        (("inspect", "x.whl"), 5, "not-found"),
        (("verify",), 5, "not-found"),
        (("deploy",), 5, "not-found"),
        (("remove", "model-cache-x", "--root", "/nonexistent"), 5, "not-found"),
        (("deploy", "--assume-target", "A/B"), 5, "not-found"),
        (("frobnicate",), 2, "usage"),
        ((), 2, "usage"),
        (("inspect",), 2, "usage"),
        (("list", "--frob"), 2, "usage"),
    ],
)
def test_every_error_has_its_code_and_is_json_when_asked_for(
    arguments: tuple[str, ...], code: int, kind: str, run: Any
) -> None:
    done = run(*arguments)
    assert done.code == code
    assert done.err.startswith("model-cache: ")
    assert "Traceback" not in done.err
    done = run(*arguments, "--json")
    assert done.code == code
    assert done.json["error"]["kind"] == kind
    assert done.json["error"]["message"]
    assert done.err == ""


@pytest.mark.parametrize("command", [None, "list", "inspect", "verify", "deploy", "remove"])
def test_help_tells_the_exit_codes(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"] if command else ["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for code in ("0  ok", "2  wrong usage", "3  damaged", "4  does not fit", "5  not found", "6  compile failed"):
        assert code in text
    if command is None:
        assert all(name in text for name in cli.BUILD_COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"model-cache {__version__}\n"


def test_build_commands_reach_the_build_side(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "h100-sxm5-80gb" in run("targets", "list").out
    import hatch_model_cache.cli as build

    seen: list[list[str]] = []
    monkeypatch.setattr(build, "main", lambda argv: seen.append(argv) or 6)
    assert run("compile", "x", "--out", "y").code == 6
    assert seen == [["compile", "x", "--out", "y"]]


def test_a_missing_build_requirement_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'packaging.version'", name="packaging.version")

    monkeypatch.setattr(importlib, "import_module", missing)
    done = run("compile", "x")
    assert done.code == 2
    assert "needs the Python package 'packaging': pip install 'hatch-model-cache[build]'" in done.err


def test_the_serving_side_never_imports_the_build_side_nor_torch(site: Path, assumed: None) -> None:
    for arguments in (["list"], ["verify"], ["deploy"], ["inspect", NAME], ["remove", NAME]):
        code = (
            f"import sys; from model_cache.cli import main; assert main({arguments!r}) == 0;"
            "unwanted = {'hatch_model_cache', 'torch', 'vllm', 'hatchling'};"
            "assert not unwanted & {module.partition('.')[0] for module in sys.modules}"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)


@pytest.mark.parametrize("unbuffered", ["1", ""])
@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", "2>&-", "2>/dev/full", ">&- 2>&- <&-"])
@pytest.mark.parametrize("words", ["list", "--help", "inspect nope --json"])
def test_a_stream_that_is_closed_or_full_is_no_accident(words: str, redirection: str, unbuffered: str) -> None:
    script = f'"$0" -m model_cache {words} {redirection}'
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "hatch_plugin"), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable], env=environment, capture_output=True, text=True, check=False
    )
    wanted = 5 if "nope" in words else 0 if redirection.startswith("2") else 1
    assert done.returncode == wanted
    assert len(done.stderr.splitlines()) == (0 if "2>" in redirection else 1), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "compile",
        "compile --bogus",
        "check --from-pid abc",
        "keygen",
        "sign",
        "rehearse",
        "targets bogus",
        "trust bogus",
    ],
)
def test_wrong_arguments_are_told_in_json_too(run: Any, words: str) -> None:
    done = run(*words.split(), "--json")
    assert (done.code, done.err) == (2, "")
    assert done.json["error"]["kind"] == "usage"


@pytest.mark.parametrize("words", ["deploy", "trust list", "check", "sigstore attach w --bundle b --trusted-root t"])
def test_what_a_command_does_not_know_points_at_its_own_help(run: Any, words: str) -> None:
    done = run(*words.split(), "--bogus")
    command = words.partition(" w ")[0]
    told = f"model-cache: unrecognized arguments: --bogus; see `model-cache {command} --help`\n"
    assert (done.code, done.out, done.err) == (2, "", told)


@pytest.mark.parametrize("command", ["check", "find", "new", "rehearse --target h100-sxm5-80gb"])
def test_an_engine_s_command_without_dashes_before_it(run: Any, command: str) -> None:
    words = [*command.split(), "/opt/bin/vllm", "serve", MODEL]
    done = run(*words, "--max-model-len", "4096")
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith(f"\nput -- before the engine's command: model-cache {words[0]} … -- vllm serve …\n")
    assert "put -- before" not in run(*command.split(), "--bogus", "--", "vllm", "serve", MODEL).err
    assert "put -- before" not in run(*command.split(), "--bogus").err


@pytest.mark.parametrize("words", ["inspect {}.whl", "verify {}.whl", "sign {}.whl --key k.pem", "check {}"])
@pytest.mark.parametrize("name", ["/" + "a" * 5000, "loop/x"])
def test_a_path_that_cannot_be_looked_at(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, name: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hatch_model_cache.packing.signing.load_key", lambda _: None)
    done = run(*words.format(name).split())
    assert (done.code, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1
    assert ": cannot be read: " in done.err


def test_the_engine_s_own_json_option_is_not_ours(run: Any) -> None:
    done = run("check", "--bogus", "--", "vllm", "serve", "m", "--json")
    assert (done.code, done.out) == (2, "")


def test_an_unexpected_error_of_the_system_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise PermissionError(13, "Permission denied", "/some/place")

    monkeypatch.setattr(cli, "_run", fail)
    done = run("list")
    assert (done.code, done.out, done.err) == (1, "", "model-cache: /some/place: Permission denied\n")


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-m", "model_cache.cli", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_the_installed_command_answers() -> None:
    script = Path(sys.executable).with_name("model-cache")
    done = subprocess.run([str(script), "list", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["wheels"] == []


def test_a_pipe_that_nobody_reads_is_no_traceback(site: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = [sys.executable, "-m", "model_cache.cli", "inspect", NAME]
    done = subprocess.run(code, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_progress_is_shown_on_a_terminal_only(site: Path, root: Path, assumed: None) -> None:
    import pty

    def on_a_terminal(*arguments: str) -> str:
        leader, follower = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        code = [sys.executable, "-m", "model_cache.cli", *arguments]
        subprocess.run(code, env=environment, stderr=follower, stdout=subprocess.DEVNULL, check=True)
        os.close(follower)
        chunks = b""
        try:
            while chunk := os.read(leader, 4096):
                chunks += chunk
        except OSError:
            pass
        os.close(leader)
        return chunks.decode()

    assert f"verify {NAME} 1.0.0: 4.1 kB of 4.1 kB" in on_a_terminal("verify")
    assert on_a_terminal("verify", "--quiet") == ""
    assert on_a_terminal("verify", "--json") == ""
    assert command("verify").stderr == ""


def test_an_interrupt_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from model_cache.commands import wheels as commands

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_list", interrupted)
    done = run("list")
    assert (done.code, done.err) == (130, "model-cache: interrupted\n")


def test_list_with_200_wheels_answers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    for number in range(200):
        name = f"model-cache-synthetic-{number}-h100-sxm5-80gb"
        contents = {f"a/{number}": {"model": str(number).encode()}}
        install(make_wheel(tmp_path / "dist", contents, name=name), site)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "hatch_plugin"), str(site)])}

    def seconds(*arguments: str) -> float:
        """Processor time: the machine may be busy with other tests."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if arguments[-1] == "list":
            assert len(done.stdout.splitlines()) == 201
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [(seconds("-c", "import argparse, json"), seconds("-m", "model_cache.cli", "list")) for _ in range(5)]
    bare, listed = (min(times) for times in zip(*pairs, strict=True))
    # 150 ms where a bare interpreter takes 20, and in proportion on a slower machine
    assert listed < 7.5 * bare, pairs
