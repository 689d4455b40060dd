from __future__ import annotations

import pytest

from hatch_model_cache import targets
from hatch_model_cache.recipe import naming


@pytest.mark.parametrize(
    ("model", "with_org", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", False, "llama-3.1-8b-instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct", True, "meta-llama-llama-3.1-8b-instruct"),
        ("Qwen/Qwen2.5_VL--7B", False, "qwen2.5-vl-7b"),
        ("/models/llama/", False, "llama"),
        ("/models/llama", True, "models-llama"),
        ("s3://bucket/path/Model_X/", False, "model-x"),
        ("s3://bucket/path/M", True, "bucket-path-m"),
        ("gpt2", True, "gpt2"),
        ("org/.Ünïcode.", False, "n-code"),
        ("org/___", False, ""),
    ],
)
def test_model_slug(model: str, with_org: bool, expected: str) -> None:
    assert naming.model_slug(model, with_org=with_org) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["h100-sxm5-80gb"], "h100-sxm5-80gb"),
        (["h100-sxm5-80gb", "h200"], "sm90"),
        (["h100-sxm5-80gb", "a100-sxm4-80gb"], None),
    ],
)
def test_hardware_name(names: list[str], expected: str | None) -> None:
    assert naming.hardware_name([targets.load(name) for name in names]) == expected


def test_the_example_of_the_documentation() -> None:
    name = naming.distribution_name("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm5-80gb")
    assert name == "model-cache-llama-3.1-8b-instruct-h100-sxm5-80gb"
    assert naming.data_package(name) == "model_cache_llama_3_1_8b_instruct_h100_sxm5_80gb"


def test_a_variant_stands_between_model_and_hardware() -> None:
    assert naming.distribution_name("org/M", "h200", variant="long") == "model-cache-m-long-h200"


def test_names_are_compared_as_an_index_does() -> None:
    assert naming.same_project("model-cache-foo.bar-sm90", "Model_Cache-foo-bar-sm90")
    assert not naming.same_project("model-cache-foo-sm90", "model-cache-foo-sm80")
