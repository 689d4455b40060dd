"""Models loaded from the headers of a checkpoint, by vLLM's own loader. The files are made by tests/checkpoints.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import checkpoints
from engine.hosts import ROOT, write_recipe
from hatch_model_cache.compiling import compiler, interpreter
from hatch_model_cache.packing import artifacts
from hatch_model_cache.recipe.file import load_recipe
from model_cache.errors import CompileError

pytestmark = pytest.mark.engine

H100 = "h100-sxm5-80gb"
MODELS = ROOT / "tests" / "data" / "models"
CONFIG, MOE = (json.loads((MODELS / name / "config.json").read_text()) for name in ("llama-tiny", "qwen3-moe-tiny"))
LARGER = {"hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 256}
STATIC_FP8 = {**CONFIG, **LARGER, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
FOUR_BITS = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
AWQ_MOE = {**MOE, **LARGER, "quantization_config": FOUR_BITS}


@pytest.fixture(autouse=True)
def one_place(engine_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile where the path is the same for all recipes: it is traced into artifacts."""

    @contextmanager
    def scratch(_: str) -> Iterator[Path]:
        with compiler_scratch("0" * 64) as directory:
            yield directory

    compiler_scratch = compiler._scratch
    monkeypatch.setattr(compiler, "_scratch", scratch)
    monkeypatch.setenv(interpreter.VARIABLE, engine_python)


def compiled(place: Path, config: dict[str, Any], tensors: checkpoints.Tensors | None) -> artifacts.Artifacts:
    """The artifacts of a Llama, with a checkpoint of these tensors or without one."""
    (place / "config").mkdir(parents=True)
    (place / "config/config.json").write_text(json.dumps(config))
    project = write_recipe(place / "recipe", place / "config", "example/llama-tiny", ["./llama-tiny"], [H100])
    if tensors is not None:
        checkpoints.write(place / "weights/model.safetensors", tensors)
        recipe = project / "pyproject.toml"
        recipe.write_text(recipe.read_text() + 'checkpoint = "../weights"\n')
    compiler.compile_recipe(load_recipe(project), place / "out")
    return artifacts.read(place / "out")


@pytest.mark.parametrize(
    ("config", "weights", "tensors"), [(CONFIG, "bf16", 39), (AWQ_MOE, "awq", 181)], ids=["llama", "awq-moe"]
)
def test_with_headers_keys_graphs_and_kernels_are_the_same(
    config: dict[str, Any], weights: str, tensors: int, tmp_path: Path
) -> None:
    """The kernels to the byte; the artifact has a random name for its function in it."""
    without = compiled(tmp_path / "without", config, None).contents
    found = compiled(tmp_path / "with", config, checkpoints.model(config, weights)).contents
    assert without.build.checkpoint is None
    assert found.build.checkpoint is not None
    assert found.build.checkpoint.tensors == tensors
    assert [entry.key for entry in found.entries] == [entry.key for entry in without.entries]
    assert found.factors == without.factors
    assert found.regions == without.regions, "graphs, and what Inductor has written for them"
    assert found.kernels == without.kernels
    assert len(found.kernels) > 10


def test_everything_that_does_not_fit_stops_the_build(tmp_path: Path) -> None:
    layers = [f"model.layers.{number}" for number in range(4)]
    tensors = checkpoints.model(CONFIG)
    del tensors["model.norm.weight"], tensors[f"{layers[1]}.self_attn.k_proj.weight"]
    tensors |= {
        f"{layers[0]}.mlp.down_proj.weight": ("BF16", [256, 600]),
        f"{layers[1]}.mlp.down_proj.weight": ("BF16", [256, 700]),
        f"{layers[2]}.mlp.up_proj.weight": ("F8_E4M3", [688, 256]),
        f"{layers[3]}.mlp.weight": ("BF16", [3]),
        "foo.bar": ("F16", [3]),
    }
    with pytest.raises(CompileError) as caught:
        compiled(tmp_path, CONFIG, tensors)
    assert sorted(caught.value.problems) == sorted(
        [
            (
                f"{layers[0]}.mlp.down_proj.weight is BF16 [256, 600] in the checkpoint, which does not fit into "
                f"{layers[0]}.mlp.down_proj.weight, bfloat16 [256, 688]"
            ),
            (
                f"{layers[2]}.mlp.up_proj.weight is float8_e4m3fn in the checkpoint, and "
                f"{layers[2]}.mlp.gate_up_proj.weight is bfloat16: it would be converted"
            ),
            (
                f"{layers[3]}.mlp.weight, BF16 [3] in the checkpoint, is not taken: There is no module or parameter "
                "named 'layers.3.mlp.weight' in LlamaModel"
            ),
            (
                "foo.bar, F16 [3] in the checkpoint, is not taken: There is no module or parameter named 'foo' in "
                "LlamaForCausalLM"
            ),
            (
                f"the checkpoint fills 98304 of the 131072 numbers of {layers[1]}.self_attn.qkv_proj.weight, bfloat16 "
                "[512, 256]"
            ),
            (
                f"{layers[1]}.mlp.down_proj.weight is BF16 [256, 700] in the checkpoint, and the model takes 176128 of "
                "its 179200 numbers"
            ),
            "nothing in the checkpoint fills model.norm.weight, bfloat16 [256]",
        ]
    )


def test_scales_of_a_static_fp8_checkpoint_are_known(tmp_path: Path) -> None:
    """What vLLM asks of them is answered from the checkpoint: nothing is made up."""
    found = compiled(tmp_path, STATIC_FP8, checkpoints.model(STATIC_FP8, "static fp8")).contents
    assert found.build.checkpoint is not None
    assert found.build.checkpoint.values == 56
    assert found.build.stand_ins == ()
    assert len(found.kernels) > 10
