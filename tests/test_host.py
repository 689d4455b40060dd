from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import fake_driver
from factories import A100, H100, make_document, make_engine, make_gpu, make_host
from model_cache.errors import UsageError
from model_cache.machine import host
from model_cache.machine.fit import Difference, DoesNotFit, compare, require
from model_cache.machine.host import Gpu, Gpus, probe_gpus, read_host
from model_cache.wheel.manifest import GpuRecord, Manifest, from_dict


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_driver.build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(driver_folder: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver_folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


# The probe


def test_every_field_of_a_target_is_read_from_the_driver(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_GPUS", fake_driver.spec(H100))
    assert probe_gpus() == Gpus((make_gpu(H100),), None)
    names = {field.name for field in fields(Gpu)}
    assert names == {field.name for field in fields(GpuRecord)} - {"name", "kind", "unverified"}


def test_several_gpus_come_in_the_drivers_order_and_its_mask_counts(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_GPUS", fake_driver.spec(H100, A100, H100))
    h100, a100 = (target["device_name"] for target in (H100, A100))
    assert [gpu.device_name for gpu in probe_gpus().gpus] == [h100, a100, h100]
    driver.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert [gpu.device_name for gpu in probe_gpus().gpus] == [a100, h100]
    driver.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe_gpus() == Gpus((), "the CUDA driver sees no GPU")


def test_the_device_name_is_kept_byte_for_byte(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_GPUS", "  Weird  GPU™ |9.0|132|1")
    assert probe_gpus().gpus[0].device_name == "  Weird  GPU™ "


def test_a_failing_driver_is_told_with_its_error(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_CUINIT", "999")
    found = probe_gpus()
    assert not found.gpus
    assert found.reason == "the CUDA driver does not answer: cuInit says error 999"
    assert found.failed
    driver.setenv("FAKE_CUINIT", "100")
    assert probe_gpus() == Gpus((), "the CUDA driver sees no GPU")


def test_a_hanging_driver_is_given_up(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_SLEEP", "30")
    assert probe_gpus(0.5) == Gpus((), "the CUDA driver did not answer within 0.5 s", failed=True)


def test_without_a_driver_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = probe_gpus()
    assert not found.gpus
    assert "libcuda.so.1 is not found" in (found.reason or "")


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"gpus": [{}]}', '{"gpus": 1}', "nonsense"])
def test_a_nonsensical_answer_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert probe_gpus() == Gpus((), "the GPU probe gave no usable answer", failed=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    assert "could not be started" in (probe_gpus().reason or "")


def test_the_driver_is_never_loaded_into_the_callers_process(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_GPUS", fake_driver.spec(H100))
    code = (
        "from model_cache.machine.host import probe_gpus; assert probe_gpus().gpus; "
        "maps = open('/proc/self/maps').read(); assert 'libcuda' not in maps; "
        "import sys; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Versions


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = make_engine(tmp_path / "engine")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site


def test_versions_are_read_without_importing_anything(engine: Path) -> None:
    found = read_host("vllm", "h100-sxm5-80gb")
    assert (found.engine, found.engine_version, found.triton) == ("vllm", "0.33.0", "3.8.0")
    # The metadata of torch says 2.14.0 only.
    assert (found.torch, found.cuda) == ("2.14.0+cu130", "13.0")
    assert found.python == platform.python_version()
    assert found.platform == f"linux_{platform.machine()}"
    assert found.assumed == "h100-sxm5-80gb"
    assert not vars(found.hardware).keys() & {"gpus", "cpu", "compiler"}  # nothing was asked for
    assert not {"torch", "vllm", "triton"} & sys.modules.keys()


def test_a_cpu_build_of_torch_has_no_cuda(engine: Path) -> None:
    make_engine(engine, torch="2.14.0+cpu")
    assert host.torch_versions() == ("2.14.0+cpu", None)


def test_torch_without_a_version_file_still_has_metadata(engine: Path) -> None:
    (engine / "torch/version.py").unlink()
    assert host.torch_versions() == ("2.14.0", None)


def test_what_is_not_installed_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = read_host("vllm", "t4")
    assert (found.engine_version, found.torch, found.cuda, found.triton) == (None, None, None, None)


@pytest.mark.parametrize("name", ["H100", "../x", "", "a b", "x" * 3 + "\n"])
def test_an_impossible_target_name_is_wrong_usage(name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a target"):
        read_host("vllm", name)


# Fit


def manifest(**options: Any) -> Manifest:
    return from_dict(make_document(**options))


def test_the_host_of_the_build_fits() -> None:
    assert compare(manifest(), make_host()).targets == ("h100-sxm5-80gb",)
    assert require(manifest(), make_host(make_gpu(), make_gpu()), "x") == ("h100-sxm5-80gb",)


@pytest.mark.parametrize(
    ("changes", "field", "wheel", "here"),
    [
        ({"engine": "sglang"}, "engine", "vllm", "sglang"),
        ({"engine_version": "0.33.1"}, "vllm", "0.33.0", "0.33.1"),
        ({"engine_version": None}, "vllm", "0.33.0", "not installed"),
        ({"torch": "2.14.0"}, "torch", "2.14.0+cu130", "2.14.0"),
        ({"cuda": "12.9"}, "cuda", "13.0", "12.9"),
        ({"triton": "3.8.1"}, "triton", "3.8.0", "3.8.1"),
        ({"python": "3.11.8"}, "python", "3.11.7", "3.11.8"),
        ({"platform": "linux_aarch64"}, "platform", "linux_x86_64", "linux_aarch64"),
    ],
)
def test_each_version_must_be_the_same(changes: dict[str, Any], field: str, wheel: str, here: str) -> None:
    fit = compare(manifest(), make_host(**changes))
    assert Difference(field, wheel, here) in fit.differences
    assert fit.targets == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"device_name": "NVIDIA H200"},
            "device_name is 'NVIDIA H200', the wheel was built for 'NVIDIA H100 80GB HBM3'",
        ),
        ({"compute_capability": "10.0"}, "compute_capability is 10.0, the wheel was built for 9.0"),
        ({"sm_count": 114}, "sm_count is 114, the wheel was built for 132"),
        ({"device_name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}, "MIG 1g.10gb'"),
    ],
)
def test_name_capability_and_sm_count_must_be_the_same(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(DoesNotFit) as caught:
        require(manifest(), make_host(make_gpu(**changes)), "model-cache-x 1.0.0")
    assert caught.value.message == "model-cache-x 1.0.0 does not fit this host"
    assert caught.value.exit_code == 4
    assert any(text in problem for problem in caught.value.problems)


def test_memory_that_a_driver_reports_differently_is_no_difference() -> None:
    assert compare(manifest(), make_host(make_gpu(total_memory=85 * 10**9, clock_rate=1))).fits


def test_all_differences_are_told_at_once() -> None:
    here = make_host(make_gpu(A100), python="3.12.1", torch="2.13.0")
    assert [difference.field for difference in compare(manifest(), here).differences] == [
        "torch",
        "python",
        "device_name",
        "compute_capability",
        "sm_count",
    ]


def test_equal_gpus_say_the_same_thing_once() -> None:
    assert len(compare(manifest(), make_host(*[make_gpu(sm_count=1)] * 8)).differences) == 1


def test_every_visible_gpu_must_be_a_target() -> None:
    one, both = manifest(), manifest(targets=(H100, A100))
    mixed = make_host(make_gpu(H100), make_gpu(A100))
    assert not compare(one, mixed).fits
    assert compare(both, mixed).targets == ("h100-sxm5-80gb", "a100-sxm4-80gb")
    assert compare(both, make_host(make_gpu(A100))).targets == ("a100-sxm4-80gb",)
    # The nearest target is the one to compare with.
    fit = compare(both, make_host(make_gpu(A100, sm_count=104)))
    assert fit.differences == (Difference("sm_count", "108", "104"),)


def test_without_a_gpu_it_does_not_fit() -> None:
    fit = compare(manifest(targets=(H100, A100)), make_host(reason="no driver"))
    assert fit.differences == (Difference("GPU", "h100-sxm5-80gb, a100-sxm4-80gb", "not visible (no driver)"),)


def test_an_assumed_target_must_be_one_of_the_wheels() -> None:
    wheel = manifest(targets=(H100, A100))
    assert compare(wheel, make_host(assumed="a100-sxm4-80gb")).targets == ("a100-sxm4-80gb",)
    fit = compare(wheel, make_host(assumed="b200"))
    assert fit.differences == (Difference("target", "h100-sxm5-80gb, a100-sxm4-80gb", "b200"),)
    # Only the GPU is assumed.
    assert not compare(wheel, make_host(assumed="a100-sxm4-80gb", python="3.12.0")).fits
