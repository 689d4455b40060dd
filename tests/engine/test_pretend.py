"""Every asker of compile/pretend, asked by the real torch, Triton and vLLM; afterwards all must be as before.

scripts/pretend_answers.py asks, once per target; the tests look at its answers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hatch_model_cache import targets

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
PLUGIN = HERE.parents[1] / "hatch_plugin"
CUBINS = json.loads((HERE.parent / "data" / "cubins" / "cuobjdump.json").read_text("utf-8"))["cubins"]
WHERE = "outside the engine's code"


@dataclasses.dataclass(frozen=True)
class Asked:
    """One run of the script."""

    target: targets.Target
    count: int
    answers: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        found = self.answers[name]
        assert "raised" not in found, f"{name}: {found['raised']}"
        return found


@pytest.fixture(scope="module", params=[("h100-sxm5-80gb", 1), ("a100-sxm4-80gb", 2)], ids=lambda p: f"{p[1]}x{p[0]}")
def asked(request: pytest.FixtureRequest, engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    target, count = request.param
    scratch = tmp_path_factory.mktemp("scratch")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(scratch / "home"),
        "TMPDIR": str(scratch),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "VLLM_CACHE_ROOT": str(scratch / "vllm"),
        "MODEL_CACHE_DISABLE": "1",
    }
    script = str(HERE / "scripts" / "pretend_answers.py")
    done = subprocess.run(
        [engine_python, "-s", script, str(PLUGIN), target, str(count), str(scratch)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Asked(targets.load(target), count, json.loads(done.stdout.splitlines()[-1]))


def test_every_check_ran(asked: Asked) -> None:
    raised = {name: found["raised"] for name, found in asked.answers.items() if "raised" in found}
    assert raised == {}


def test_torch_cuda(asked: Asked) -> None:
    answers, target = asked["torch_cuda"], asked.target
    properties = answers["properties"]
    assert properties == {name: getattr(target, name) for name in properties}
    assert answers["available"] is True
    assert answers["count"] == asked.count
    assert answers["name"] == target.device_name
    assert tuple(answers["capability"]) == target.capability
    assert answers["bf16"] is True
    assert answers["current"] == [0, asked.count - 1, 0]
    free, total = answers["memory"]
    assert 0 < free < total == target.total_memory
    assert answers["allocated"] == 0
    assert answers["same_object_twice"]


def test_torch_accelerator(asked: Asked) -> None:
    memory = asked["torch_cuda"]["memory"]
    expected = {"available": True, "kind": "cuda", "count": asked.count, "current": 0, "memory": memory}
    assert asked["torch_accelerator"] == expected


def test_nvml(asked: Asked) -> None:
    assert asked["nvml"] == {
        "count": asked.count,
        "index": asked.count - 1,
        "name": asked.target.device_name,
        "capability": list(asked.target.capability),
        "total": asked.target.total_memory,
        "numa": "NVMLError_NotSupported",
    }


def test_the_engines_platform(asked: Asked) -> None:
    assert asked["platform"] == {
        "class": "NvmlCudaPlatform",
        "name": asked.target.device_name,
        "capability": list(asked.target.capability),
        "total": asked.target.total_memory,
        "sm_count": asked.target.sm_count,
    }


def test_triton_driver(asked: Asked) -> None:
    answers, target = asked["triton_driver"], asked.target
    assert answers["target"] == ["cuda", int(target.sm.removeprefix("sm")), target.warp_size]
    assert answers["is_a_cuda_driver"]
    assert answers["backend_driver"]
    assert answers["torch_device"] == "cuda:0"
    assert answers["properties"] == {
        "max_shared_mem": target.shared_memory_per_block_optin,
        "max_num_regs": target.registers_per_multiprocessor,
        "multiprocessor_count": target.sm_count,
        "warpSize": target.warp_size,
        "sm_clock_rate": target.clock_rate,
        "mem_clock_rate": target.memory_clock_rate,
        "mem_bus_width": target.memory_bus_width,
    }


def test_inductors_view_of_the_device(asked: Asked) -> None:
    target = asked.target
    assert asked["inductor_properties"] == {
        "type": "cuda",
        "cc": int(target.sm.removeprefix("sm")),
        "major": target.capability[0],
        "sm_count": target.sm_count,
        "registers": target.registers_per_multiprocessor,
        "threads": target.max_threads_per_multiprocessor,
        "warp_size": target.warp_size,
    }


def test_libcuda_can_be_found_by_its_name(asked: Asked) -> None:
    assert asked["libcuda"] == {"loaded": "libcuda.so.1"}


def test_tensors_on_the_gpu_are_fake_and_those_on_the_cpu_are_real(asked: Asked) -> None:
    assert asked["fake_tensors"] == {
        "product": ["FakeTensor", "cuda:0", [4, 3], "torch.bfloat16"],
        "literal": ["FakeTensor", "cuda:0", [3], "torch.int64"],
        "moved_under_inference_mode": ["FakeTensor", f"cuda:{asked.count - 1}", [6], "torch.int64"],
        "back": ["FakeTensor"],
        "layer": ["FakeTensor", "cuda:0", [5, 8], "torch.float16"],
        "layer_is_parameter": True,
        "layer_output": ["FakeTensor", "cuda:0", [2, 5], "torch.float16"],
        "cpu": ["Tensor", [[6.0, 6.0], [6.0, 6.0]]],
        "pinned": ["Tensor", "cpu"],
        "pinned_again": ["Tensor", "cpu"],
    }


def test_reading_a_fake_value_answers_one_and_is_logged(asked: Asked) -> None:
    answers = asked["host_reads"]
    assert (answers["int"], answers["float"], answers["bool"]) == (1, 1.0, True)
    assert isinstance(answers["float"], float)
    assert answers["cpu_is_read"] == 0.0
    assert answers["logged"] == [[WHERE, "1", 1], [WHERE, "1.0", 1], [WHERE, "True", 1]]


def test_an_operator_without_a_fake_kernel_stops_the_build_with_its_name(asked: Asked) -> None:
    answers = asked["missing_fake_kernel"]
    for answer, name in (
        (answers["no_kernel"], "model_cache_test::mystery"),
        (answers["shape_from_values"], "nonzero"),
    ):
        assert answer.startswith("MissingFakeKernelError: ")
        assert name in answer
        assert "WITHOUT_FAKE_KERNEL" in answer
    assert answers["all_values"].startswith("MissingFakeKernelError: all values of a tensor without any are asked for")


def test_what_operators_without_a_fake_kernel_return(asked: Asked) -> None:
    assert asked["stated_fake_kernels"] == {
        "blocks as they are": [[8, 2, 5], [10, 5, 1], "torch.float32", "cuda:0"],
        "blocks packed": [[8, 198, 2], [400, 1, 200], "torch.int32", "cuda:0"],
        "rows padded": [[8, 198, 5], [1000, 1, 200], "torch.float32", "cuda:0"],
        "metadata": [[8], [1], "torch.int32", "cuda:0"],
    }


def test_an_out_variant_of_the_engine_is_skipped(asked: Asked) -> None:
    assert asked["out_variant"] == {"skipped": {"_C.rms_norm.default": 1}}


def test_a_triton_kernel_is_compiled_for_the_target_and_not_launched(asked: Asked) -> None:
    answers, arch = asked["triton_kernels"], asked.target.ptx_arch
    assert answers["ptxas_runs"] == 1
    assert answers["arch"] == arch
    assert answers["noted"] == [["add_kernel", arch]]
    assert answers["told"] == ["add_kernel"]
    assert answers["registers"][0] == answers["registers"][1] > 0
    assert answers["compiled_by_launches"] == 0
    assert answers["skipped"] == {"add_kernel": 1, "tuned_kernel": 1, "heuristic_kernel": 1}
    assert answers["launch"] == "RuntimeError: a pretended GPU cannot launch a kernel"


def test_loading_a_kernel_answers_as_the_driver_does(asked: Asked) -> None:
    answers, most = asked["kernel_loading"], asked.target.shared_memory_per_block_optin
    recorded = CUBINS[f"{asked.target.ptx_arch}-ptxas.cubin"]["kernels"]["spill"]
    assert answers["registers_and_spills"] == [recorded["registers"], recorded["stack"] // 4]
    assert answers["most shared memory"] == "loaded"
    refusal = answers["too much shared memory"]
    assert refusal.startswith("RuntimeError: out of resource: shared memory")
    assert str(most) in refusal
    assert str(most + 1) in refusal
    assert answers["another architecture"] == (
        "RuntimeError: no kernel image is available for execution on the device: add_one is for sm_75"
    )
    assert answers["no such kernel"].startswith("CubinError")


def test_inductor_compiles_for_the_target(asked: Asked) -> None:
    answers = asked["inductor_compile"]
    assert answers["ptxas_runs"] > 0
    assert answers["noted"] == answers["written"] == [asked.target.ptx_arch]
    assert answers["all_noted_are_written"]
    assert answers["stand_ins"] == ["torch._inductor pad_mm._should_pad"]


def test_inductor_times_nothing_and_sorts(asked: Asked) -> None:
    assert asked["inductor_questions"] == {
        "combo": True,
        "autotune_block": None,
        "listdir": ["a", "b", "c", "d"],
        "other_os_names": "b",
        "knobs": [False, True, True],
    }


def test_the_process_group_needs_no_other_rank(asked: Asked) -> None:
    gathered = ["FakeTensor", "cuda:0", [4], "torch.float32"]
    assert asked["process_group"] == {"rank": 1, "size": 2, "group": 2, "gathered": gathered}


def test_communicators_of_several_ranks(asked: Asked) -> None:
    expected = {"nccl": [True, False], "custom": True, "symmetric": True, "queue": None, "workspace": True}
    assert asked["communicators"] == (expected if asked.count > 1 else {})


def test_a_weight_is_its_own_class_and_fake_at_once(asked: Asked) -> None:
    answers = asked["parameters"]
    assert answers["weight"] == [True, True, True]
    assert answers["loader"] == "rows"
    assert answers["name"] == "LoadedParameter"
    assert answers["plain"] == [True, True]
    assert answers["real"] == ["LoadedParameter", False, [0.0, 0.0]]
    assert answers["moved"]
    assert answers["demoted"] == ["FakeTensor", "FakeTensor"]
    assert "real tensors" in answers["real_weight"]
    assert ".real" in answers["real_weight"]


def test_a_weight_survives_being_made_again(asked: Asked) -> None:
    assert asked["reloaded_parameters"] == {
        "meta": ["BasevLLMParameter", "meta", "kept"],
        "back": [True, True, "kept", "cuda:0"],
    }


def test_the_loader_reads_nothing(asked: Asked) -> None:
    assert asked["model_loader"] == {
        "loader": "ShapesOnlyLoader",
        "is_a_dummy_loader": True,
        "view": ["FakeTensor", "cuda:0", [3], "torch.int32"],
        "pin_memory": [],
        "inspection": True,
    }


def test_tiny_tensors_have_their_values_and_what_is_made_of_others_has_none(asked: Asked) -> None:
    assert asked["small_values_are_carried"] == {
        "made": 1.0,
        "filled": -4.0,
        "largest": 2.0,
        "smaller": True,
        "on the host": 2.75,
        "of a large one": 1.0,
        "all written over": 8.0,
        "a placeholder, and after loading": [-1.0, 1.0],
        "repeated": [1, 4],
    }


def test_weights_are_repacked_for_marlin_to_the_shapes_of_real_ones(asked: Asked) -> None:
    answers = asked["marlin_weights"]
    assert answers["pretended"] == answers["real"] == [[2, 48], [48, 1], "torch.int32"]
    assert answers["is"] == ["FakeTensor", "cuda:0"]
    assert answers["factor"] == 1.0
    assert answers["nonzero elsewhere"] == "MissingFakeKernelError"
    assert answers["stand-ins"] == ["1.0", "True", "an array of zeros", "result of aten::nonzero"]


def test_every_replaced_attribute_is_back(asked: Asked) -> None:
    answers = asked["restored"]
    assert answers["attributes"] > 150, "the check has lost sight of the patches"
    assert answers["changed"] == []
    # What vLLM took for itself when it was imported; see the docstring of compile/pretend/__init__.py.
    assert answers["left"] == ["vllm.utils.torch_utils.prev_set_stream"]


def test_what_is_no_attribute_is_back(asked: Asked) -> None:
    assert asked["restored_without_an_attribute"] == {
        "only_lift_cpu_tensors": False,
        "backend_driver": True,
        "backend_driver_name": "triton.backends.nvidia.driver",
        "knobs": {},
        "propagate_env": True,
        "cuda": False,
        "cpu_works": [[2.0, 2.0], [2.0, 2.0]],
        "closed_twice": None,
    }


def test_every_patch_says_why_and_on_what_it_was_checked(asked: Asked) -> None:
    patches = asked.answers["patches"]
    assert len(patches) > 150
    for owner, name, why, checked in patches:
        assert why, f"{owner}.{name}"
        assert any(character.isdigit() for character in checked), f"{owner}.{name}: {checked}"
