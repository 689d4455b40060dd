"""The guides to recipes, matrices and pipelines: what they show is run, with fakes/fake_engine.py for the engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from build_factories import CONFIG
from fakes import fake_engine
from hatch_model_cache.commands import new
from hatch_model_cache.matrix import matrix_file
from hatch_model_cache.scaffold.scaffold import PIPELINES
from model_cache.console import Parser

GUIDES = Path(__file__).resolve().parent.parent / "docs" / "guides"
ENGINE = "/opt/vllm/bin/python"


def blocks(guide: str, language: str) -> list[str]:
    text = (GUIDES / guide).read_text("utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for written_in, block in fenced if written_in == language]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Where a reader of the guides works."""
    place = tmp_path / "here"
    for model in ("Qwen3-8B", "models/qwen3-8b", "models/finetune"):
        (place / model).mkdir(parents=True)
        (place / model / "config.json").write_text(json.dumps(CONFIG))
    fake_engine.interpreter(tmp_path)
    return place


def run(script: str, here: Path) -> str:
    """What a script prints; it must succeed."""
    variables = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(here)}
    script = script.replace(ENGINE, str(here.parent / "fake-python"))
    done = subprocess.run(
        ["/bin/bash", "-ec", script], cwd=here, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.fleet
def test_the_way_from_a_command_to_a_wheel(here: Path) -> None:
    [script] = blocks("new-recipe.md", "sh")
    run(script, here)
    name = "model-cache-qwen3-8b-h100-sxm5-80gb"
    [wheel] = (here / name / "dist").iterdir()
    assert wheel.name.startswith(name.replace("-", "_"))


@pytest.mark.fleet
def test_the_matrix(here: Path) -> None:
    [file] = blocks("matrix.md", "toml")
    (here / "matrix.toml").write_text(file)
    [shown] = [block for block in blocks("matrix.md", "") if block.startswith("$ ")]
    command, _, expected = shown.partition("\n")
    assert run(command.removeprefix("$ "), here) == expected
    building, emitting = blocks("matrix.md", "sh")
    printed = run(building, here)
    assert len(list((here / "dist").iterdir())) == 4
    assert "0 of 4 wheels are to be built" in printed
    assert "3 up to date of 3 wheels" in printed
    assert run(emitting, here).startswith('{"include":[]}\n')


def test_the_pipelines(here: Path) -> None:
    [script] = blocks("pipelines.md", "sh")
    run(script, here)
    text = (GUIDES / "pipelines.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == PIPELINES.keys()
    [project] = here.glob("model-cache-*")
    for path in re.findall(r"`(\.?[a-zA-Z][\w./-]*(?:/[\w.-]+|\.yml))`|`(Dockerfile)`", text):
        name = path[0] or path[1]
        assert name == "templates/actions.toml" or (project / name).exists(), name


def test_every_key_and_option_is_told() -> None:
    table = "\n".join(re.findall(r"^\| .*", (GUIDES / "matrix.md").read_text("utf-8"), re.MULTILINE))
    for key in (*matrix_file._TOP, *matrix_file._AXES):
        assert re.search(rf"[`\[.]{key}\b", table), key
    parser = Parser(prog="new")
    new.add_arguments(parser)
    text = "".join((GUIDES / guide).read_text("utf-8") for guide in ("new-recipe.md", "pipelines.md"))
    for flag in parser._option_string_actions:
        assert flag in ("-h", "--help", "--quiet", "--version", "--name-with-org") or f"{flag}" in text, flag


@pytest.mark.parametrize("guide", ["new-recipe.md", "matrix.md", "pipelines.md"])
def test_links_lead_somewhere(guide: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", (GUIDES / guide).read_text("utf-8")):
        assert (GUIDES / target).exists(), target
