"""The guide to `model-cache compile`: what it shows is run, with fakes/fake_engine.py for the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shown
from build_factories import CONFIG
from fakes import fake_engine
from hatch_model_cache.packing import artifacts

pytestmark = pytest.mark.fleet

NAME = "model-cache-qwen3-8b-h100-sxm5-80gb"
MODEL, TARGET = "Qwen/Qwen3-8B", "h100-sxm5-80gb"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Where a reader of the guide works; an engine has served the model there."""
    place = tmp_path / "here"
    (place / "Qwen3-8B").mkdir(parents=True)
    (place / "Qwen3-8B" / "config.json").write_text(json.dumps(CONFIG))
    key = fake_engine.key_of(TARGET, "backbone", MODEL)
    model = place / ".cache/vllm" / fake_engine.CACHE / key / "rank_0_0/model"
    model.parent.mkdir(parents=True)
    model.write_bytes(fake_engine.artifact(TARGET))
    return place


@pytest.fixture
def swap(tmp_path: Path) -> dict[str, str]:
    """What stands for the engine's interpreter: it says that it has vLLM."""
    fake, python = fake_engine.interpreter(tmp_path), tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$3" in *metadata*) echo "vllm 0.33.0";; *) exec {fake} "$@";; esac\n')
    python.chmod(0o755)
    return {"/opt/vllm/bin/python": str(python)}


def test_what_the_guide_shows(here: Path, swap: dict[str, str]) -> None:
    refused = f"model-cache compile --target {TARGET} --config ./Qwen3-8B --native"
    ran = shown.run(shown.commands("compile.md"), here, swap=swap, codes={refused: 2})
    _, compiled, into, status, captured, native, beside = ran
    assert native.output == native.command.output
    for one in (compiled, into, beside):
        assert f"compiled {NAME}: vllm==0.33.0 for {TARGET}" in one.output
    assert f"captured {NAME}" in captured.output
    assert f"{NAME} 0: intact, not used" in status.output
    modes = {name: artifacts.read(here / name).contents.build.mode for name in ("artifacts", "captured", "later")}
    assert modes == {"artifacts": "cross", "captured": "capture", "later": "cross"}


def test_the_example_in_python(
    here: Path, swap: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [example] = shown.blocks("compile.md", "python")
    monkeypatch.chdir(here)
    monkeypatch.setenv("MODEL_CACHE_PYTHON", *swap.values())
    exec(example, {})
    assert capsys.readouterr().out == f"{NAME} artifacts 1\n"
