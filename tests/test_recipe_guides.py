"""The guides to recipes, matrices and pipelines: what they show is run, with fakes/fake_engine.py for the engine."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

import shown
from build_factories import CONFIG
from fakes import fake_engine
from hatch_model_cache.commands import new
from hatch_model_cache.matrix import matrix_file
from hatch_model_cache.scaffold.scaffold import PIPELINES
from model_cache.console import Parser
from model_cache.wheel.archive import WheelPayload
from model_cache.wheel.verify import read_manifest

GUIDES = Path(__file__).resolve().parent.parent / "docs" / "guides"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Where a reader of the guides works."""
    place = tmp_path / "here"
    for model in ("Qwen3-8B", "models/qwen3-8b", "models/finetune"):
        (place / model).mkdir(parents=True)
        (place / model / "config.json").write_text(json.dumps(CONFIG))
    fake_engine.interpreter(tmp_path)
    return place


@pytest.mark.fleet
def test_the_way_from_a_command_to_a_wheel(here: Path) -> None:
    shown.run(shown.commands("new-recipe.md"), here, swap=engine(here))
    name = "model-cache-qwen3-8b-h100-sxm5-80gb"
    [wheel] = (here / name / "dist").iterdir()
    assert wheel.name.startswith(name.replace("-", "_"))


@pytest.mark.fleet
def test_the_matrix(here: Path) -> None:
    [file] = shown.blocks("matrix.md", "toml")
    (here / "matrix.toml").write_text(file)
    plan, *others = shown.run(shown.commands("matrix.md"), here, swap=engine(here))
    assert plan.output == plan.command.output
    assert len(list((here / "dist").iterdir())) == 4
    [group] = (here / "dist").glob("model_cache_finetune_hopper*.whl")
    entries, blobs = holds(group)
    assert (len(entries), blobs) == (2, 1), "two targets of one model share what is equal"
    _, _, again, only, github, *_ = (ran.output for ran in others)
    assert "0 of 4 wheels are to be built" in again
    assert "3 up to date of 3 wheels" in only
    assert github == '{"include":[]}\n'


def test_the_pipelines(here: Path) -> None:
    shown.run(shown.commands("pipelines.md"), here)
    text = (GUIDES / "pipelines.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == PIPELINES.keys()
    [project] = here.glob("model-cache-*")
    for path in re.findall(r"`(\.?[a-zA-Z][\w./-]*(?:/[\w.-]+|\.yml))`|`(Dockerfile)`", text):
        name = path[0] or path[1]
        assert name == "templates/actions.toml" or (project / name).exists(), name


def holds(wheel: Path) -> tuple[set[str], int]:
    """The targets of a wheel's entries, and how many files they share."""
    with WheelPayload(str(wheel)) as payload:
        manifest = read_manifest(payload).manifest
    with zipfile.ZipFile(wheel) as archive:
        blobs = sum("/blobs/" in name for name in archive.namelist())
    return {entry.target for entry in manifest.entries}, blobs


def engine(here: Path) -> dict[str, str]:
    """What stands for the engine's interpreter."""
    return {"/opt/vllm/bin/python": str(here.parent / "fake-python")}


def test_every_key_and_option_is_told() -> None:
    table = "\n".join(re.findall(r"^\| .*", (GUIDES / "matrix.md").read_text("utf-8"), re.MULTILINE))
    for key in (*matrix_file._TOP, *matrix_file._AXES):
        assert re.search(rf"[`\[.]{key}\b", table), key
    parser = Parser(prog="new")
    new.add_arguments(parser)
    text = "".join((GUIDES / guide).read_text("utf-8") for guide in ("new-recipe.md", "pipelines.md"))
    for flag in parser._option_string_actions:
        assert flag in ("-h", "--help", "--quiet", "--version", "--name-with-org") or f"{flag}" in text, flag
