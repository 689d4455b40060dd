"""Under which name a compiled model is known, in engines that note it and in one that does not (fakes)."""

from __future__ import annotations

import sys
import types

import pytest

from model_cache.engine import model_tag


class Wrapper:
    """As vLLM's `TorchCompileWithNoGuardsWrapper`."""

    def __init__(self, compile_prefix: str = "", is_encoder: bool = False) -> None:
        self._compile_prefix = compile_prefix


@pytest.fixture
def decorators(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """vLLM 0.31.0, just imported."""
    vllm, backends = types.ModuleType("vllm"), types.ModuleType("vllm.compilation.backends")
    vars(vllm)["__version__"] = "0.31.0"
    vars(backends)["model_tag"] = "backbone"
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.compilation.backends", backends)
    monkeypatch.setattr(Wrapper, "__init__", Wrapper.__init__)  # what is replaced is put back
    module = types.ModuleType("vllm.compilation.decorators")
    vars(module)["TorchCompileWithNoGuardsWrapper"] = Wrapper
    return module


def test_an_engine_that_notes_no_tag_is_helped(decorators: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_tag.of(Wrapper()) == ""
    model_tag.keep_all(decorators)
    assert model_tag.of(Wrapper()) == "backbone"
    assert model_tag.of(Wrapper(compile_prefix="Qwen2_5_VisionBlock", is_encoder=True)) == "Qwen2_5_VisionBlock"
    monkeypatch.setattr(sys.modules["vllm.compilation.backends"], "model_tag", "eagle_head")
    assert model_tag.of(Wrapper()) == "eagle_head"


def test_an_engine_that_notes_it_is_left_alone(decorators: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.33.0")
    before = Wrapper.__init__
    model_tag.keep_all(decorators)
    assert Wrapper.__init__ is before


def test_a_tag_that_is_there_stays(decorators: types.ModuleType) -> None:
    model = Wrapper()
    vars(model)[model_tag.ATTRIBUTE] = "its own"
    model_tag.keep(model)
    assert model_tag.of(model) == "its own"


def test_an_engine_that_is_not_as_expected_goes_on(
    decorators: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sys.modules["vllm.compilation.backends"], "model_tag")
    model_tag.keep_all(decorators)
    assert model_tag.of(Wrapper()) == ""
