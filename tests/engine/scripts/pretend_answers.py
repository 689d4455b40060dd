"""Ask every asker under a pretended GPU, end the pretence, and look whether all is as before.

Runs in the engine's interpreter:

    python pretend_answers.py <hatch_plugin> <target> <number of GPUs> <scratch directory>

Prints one JSON object on its last line, name of a check -> its answers; a check that raised gives {"raised": …}.
One process for all checks, since importing the engine takes longer than all of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import sys
import traceback
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])
TARGET, COUNT, SCRATCH = sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
CUBINS = Path(__file__).resolve().parents[2] / "data" / "cubins"
MISSING = object()

from hatch_model_cache import cubin, targets  # noqa: E402
from hatch_model_cache.compile.pretend import Pretence, model_loading, patches  # noqa: E402

results: dict[str, Any] = {}


def check(function: Callable[[], Any]) -> None:
    """Run `function` now and keep what it returns, or what it raised."""
    try:
        results[function.__name__] = function()
    except Exception as error:
        traceback.print_exc()
        results[function.__name__] = {"raised": f"{type(error).__name__}: {error}"}


# Before anything is replaced: note each attribute that will be, and all that was in its owner.
before: dict[tuple[int, str], tuple[Any, str, Any]] = {}
real_set = patches.Patches.set


def noting_set(self: Any, owner: Any, name: str, value: object, **about: Any) -> None:
    before.setdefault((id(owner), name), (owner, name, vars(owner).get(name, MISSING)))
    real_set(self, owner, name, value, **about)


patches.Patches.set = noting_set

import torch  # noqa: E402

target = targets.load(TARGET)
pretence = Pretence(target, COUNT)
pretence.before_engine_import(SCRATCH)
pretence.before_platform()
model_loading.install_inspection(pretence.patches)
log = pretence.device.log
kernel_source = SCRATCH / "kernels.py"  # Triton reads a kernel's source from its file
kernel_source.write_text(
    """
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned_kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, at, at < n)


@triton.heuristics({"BLOCK": lambda _: 64})
@triton.jit
def heuristic_kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, at, at < n)
"""
)
sys.path.insert(0, str(SCRATCH))


def describe(tensor: Any) -> list[Any]:
    """Type, device, shape and dtype of a tensor."""
    return [type(tensor).__name__, str(tensor.device), list(tensor.shape), str(tensor.dtype)]


@check
def torch_cuda() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(COUNT - 1)
    with torch.cuda.device(COUNT - 1):
        inside = torch.cuda.current_device()
    return {
        "available": torch.cuda.is_available(),
        "count": torch.cuda.device_count(),
        "name": torch.cuda.get_device_name(0),
        "capability": list(torch.cuda.get_device_capability()),
        "bf16": torch.cuda.is_bf16_supported(False),
        "current": [torch.cuda.current_device(), inside, torch.cuda.current_device()],
        "memory": list(torch.cuda.mem_get_info()),
        "allocated": torch.cuda.memory_allocated(),
        "properties": {
            "device_name": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "sm_count": properties.multi_processor_count,
            "total_memory": properties.total_memory,
            "l2_cache_size": properties.L2_cache_size,
            "shared_memory_per_block": properties.shared_memory_per_block,
            "shared_memory_per_block_optin": properties.shared_memory_per_block_optin,
            "shared_memory_per_multiprocessor": properties.shared_memory_per_multiprocessor,
            "registers_per_multiprocessor": properties.regs_per_multiprocessor,
            "max_threads_per_multiprocessor": properties.max_threads_per_multi_processor,
            "max_threads_per_block": properties.max_threads_per_block,
            "warp_size": properties.warp_size,
            "clock_rate": properties.clock_rate,
            "memory_clock_rate": properties.memory_clock_rate,
            "memory_bus_width": properties.memory_bus_width,
        },
        "same_object_twice": torch.cuda.get_device_properties(0) is torch.cuda.get_device_properties("cuda:0"),
        "stream": torch.cuda.current_stream().cuda_stream,
        "event": torch.cuda.Event().query(),
    }


@check
def torch_accelerator() -> dict[str, Any]:
    return {
        "available": torch.accelerator.is_available(),
        "kind": torch.accelerator.current_accelerator().type,
        "count": torch.accelerator.device_count(),
        "current": torch.accelerator.current_device_index(),
        "memory": list(torch.accelerator.get_memory_info()),
    }


@check
def nvml() -> dict[str, Any]:
    import vllm.third_party.pynvml as pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(COUNT - 1)
    try:
        pynvml.nvmlDeviceGetNumaNodeId(handle)
        numa = "answered"
    except pynvml.NVMLError as error:
        numa = type(error).__name__
    return {
        "count": pynvml.nvmlDeviceGetCount(),
        "index": pynvml.nvmlDeviceGetIndex(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "capability": list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "total": pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        "numa": numa,
    }


@check
def platform() -> dict[str, Any]:
    from vllm.platforms import current_platform

    return {
        "class": type(current_platform).__name__,
        "name": current_platform.get_device_name(0),
        "capability": list(current_platform.get_device_capability(0)),
        "total": current_platform.get_device_total_memory(0),
        "sm_count": current_platform.num_compute_units(),
    }


@check
def triton_driver() -> dict[str, Any]:
    import triton.backends.nvidia.driver as nvidia
    from triton.backends import backends
    from triton.runtime import driver

    found = driver.active.get_current_target()
    utils = driver.active.utils.get_device_properties(0)
    return {
        "target": [found.backend, found.arch, found.warp_size],
        "is_a_cuda_driver": isinstance(driver.active, nvidia.CudaDriver),
        "backend_driver": backends["nvidia"].driver is type(driver.active),
        "properties": utils,
        "torch_device": str(driver.active.get_active_torch_device()),
    }


@check
def inductor_properties() -> dict[str, Any]:
    from torch._inductor.runtime.hints import DeviceProperties

    found = DeviceProperties.create(torch.device("cuda:0"))
    return {
        "type": found.type,
        "cc": found.cc,
        "major": found.major,
        "sm_count": found.multi_processor_count,
        "registers": found.regs_per_multiprocessor,
        "threads": found.max_threads_per_multi_processor,
        "warp_size": found.warp_size,
    }


@check
def libcuda() -> dict[str, Any]:
    return {"loaded": ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)._name}


@check
def fake_tensors() -> dict[str, Any]:
    with pretence.mode:
        a = torch.empty(4, 8, dtype=torch.bfloat16, device="cuda")
        b = torch.ones(8, 3, dtype=torch.bfloat16).to("cuda")
        cpu = torch.full((2, 2), 3.0) @ torch.ones(2, 2)
        layer = torch.nn.Linear(8, 5).to("cuda")
        layer_again = layer.half()
        with torch.inference_mode():
            moved = torch.arange(6).to(torch.device("cuda", COUNT - 1))
        return {
            "product": describe(a @ b),
            "literal": describe(torch.tensor([1, 2, 3], device="cuda")),
            "moved_under_inference_mode": describe(moved),
            "back": describe((a @ b).cpu())[:1],
            "layer": describe(layer.weight),
            "layer_is_parameter": isinstance(layer_again.weight, torch.nn.Parameter),
            "layer_output": describe(layer_again(torch.empty(2, 8, dtype=torch.half, device="cuda"))),
            "cpu": [type(cpu).__name__, cpu.tolist()],
            "pinned": describe(torch.empty(3, pin_memory=True))[:2],
            "pinned_again": describe(torch.ones(3).pin_memory())[:2],
        }


@check
def host_reads() -> dict[str, Any]:
    with pretence.mode:
        return {
            "int": torch.zeros(1, dtype=torch.int32, device="cuda").item(),
            "float": torch.zeros(3, device="cuda").sum().item(),
            "bool": bool(torch.zeros(1, device="cuda") > 5),
            "cpu_is_read": torch.zeros(1).item(),
            "logged": sorted([*key, count] for key, count in log.stand_ins.items()),
        }


@check
def missing_fake_kernel() -> dict[str, Any]:
    torch.library.define("model_cache_test::mystery", "(Tensor x) -> Tensor")
    torch.library.impl("model_cache_test::mystery", "CUDA", lambda x: x.clone())
    found = {}
    with pretence.mode:
        x = torch.ones(4, device="cuda")
        for name, ask in (
            ("no_kernel", lambda: torch.ops.model_cache_test.mystery(x)),
            ("shape_from_values", lambda: torch.nonzero(x)),
            ("all_values", lambda: x.cpu().numpy()),
        ):
            try:
                ask()
                found[name] = "nothing raised"
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


@check
def stated_fake_kernels() -> dict[str, Any]:
    for module in ("vllm.third_party.deep_gemm", "vllm.vllm_flash_attn"):
        importlib.import_module(module)  # registers its operators
    layout = torch.ops.deep_gemm.transform_sf_into_required_layout
    metadata = torch.ops._vllm_fa3_C.get_scheduler_metadata
    found = {}
    with pretence.mode:
        blocks, rows = torch.empty(8, 2, 5, device="cuda"), torch.empty(8, 198, 5, device="cuda")
        lengths = torch.ones(7, dtype=torch.int32, device="cuda")
        for name, ask in {
            "blocks as they are": lambda: layout(blocks, 198, 640, (1, 128, 128), 8, False, True),
            "blocks packed": lambda: layout(blocks, 198, 640, (1, 128, 128), 8, False, False),
            "rows padded": lambda: layout(rows, 198, 640, (1, 128, 128), 8, True, True),
            "metadata": lambda: metadata(
                7, 1, 1, 8, 8, 64, 64, torch.bfloat16, lengths, *[None] * 5, None, 0, True, -1, -1, False, 0, None, 0
            ),
        }.items():
            answer = ask()
            found[name] = [list(answer.shape), list(answer.stride()), str(answer.dtype), str(answer.device)]
    return found


@check
def out_variant() -> dict[str, Any]:
    import vllm._custom_ops

    with pretence.mode:
        x = torch.ones(4, 16, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(4, 16, device="cuda", dtype=torch.bfloat16)
        vllm._custom_ops.rms_norm(out, x, torch.ones(16, device="cuda", dtype=torch.bfloat16), 1e-6)
    return {"skipped": {name: count for name, count in log.launches_skipped.items() if name.startswith("_C")}}


@check
def triton_kernels() -> dict[str, Any]:
    import kernels

    runs, known = log.ptxas_runs, set(log.kernels)
    told: list[str] = []
    log.on_kernel = lambda kernel: told.append(kernel.name)
    with pretence.mode:
        x = torch.empty(512, device="cuda")
        compiled = kernels.add_kernel.warmup(x, x, 512, BLOCK=128, grid=(4,))
        compiled._init_handles()
        after_warmup = log.ptxas_runs
        kernels.add_kernel[(4,)](x, x, 512, BLOCK=256)
        kernels.tuned_kernel[(4,)](x, 512)
        kernels.heuristic_kernel[(4,)](x, 512)
    log.on_kernel = None
    binary = compiled.asm["cubin"]
    noted = [kernel for digest, kernel in log.kernels.items() if digest not in known]
    try:
        compiled.run(4, 1, 1, 0, None, None, None, None, None, x, x, 512)
        launch = "launched"
    except Exception as error:
        launch = f"{type(error).__name__}: {error}"
    return {
        "ptxas_runs": after_warmup - runs,
        "arch": cubin.architecture(binary),
        "noted": [[k.name, k.arch] for k in noted],
        "told": told,
        "registers": [compiled.n_regs, cubin.resources(binary, "add_kernel")[0]],
        "compiled_by_launches": log.ptxas_runs - after_warmup,
        "skipped": {k: v for k, v in log.launches_skipped.items() if k.endswith("_kernel")},
        "launch": launch,
    }


@check
def kernel_loading() -> dict[str, Any]:
    import torch._inductor.runtime.static_triton_launcher as launcher

    load = launcher.StaticallyLaunchedCudaKernel.C_impl._load_kernel
    right, other = (str(CUBINS / f"{arch}-ptxas.cubin") for arch in (target.ptx_arch, "sm_75"))
    found: dict[str, Any] = {"registers_and_spills": list(load(right, "spill", 0, 0)[2:])}
    most = target.shared_memory_per_block_optin
    for name, path, kernel, shared in (
        ("most shared memory", right, "add_one", most),
        ("too much shared memory", right, "add_one", most + 1),
        ("another architecture", other, "add_one", 0),
        ("no such kernel", right, "absent", 0),
    ):
        try:
            load(path, kernel, shared, 0)
            found[name] = "loaded"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


@check
def inductor_compile() -> dict[str, Any]:
    """A whole compile: pointwise, reduction, and a matmul with odd sizes, which Inductor would time with padding."""
    import torch._inductor
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    def model(x: Any, w: Any) -> Any:
        return (torch.nn.functional.silu(x @ w).softmax(-1) * x.sum(),)

    runs, known = log.ptxas_runs, set(log.kernels)
    with FakeTensorMode():
        x = torch.empty(130, 67, dtype=torch.bfloat16, device="cuda")
        w = torch.empty(67, 67, dtype=torch.bfloat16, device="cuda")
    graph = make_fx(model, tracing_mode="fake")(x, w)
    torch._inductor.standalone_compile(graph, [x, w], dynamic_shapes="from_example_inputs")
    written = [path.read_bytes() for path in SCRATCH.rglob("*.cubin") if "triton" in path.name]
    noted = {digest: kernel for digest, kernel in log.kernels.items() if digest not in known}
    return {
        "ptxas_runs": log.ptxas_runs - runs,
        "noted": sorted({kernel.arch for kernel in noted.values()}),
        "written": sorted({cubin.architecture(one) for one in written}),
        "all_noted_are_written": set(noted) <= {hashlib.sha256(one).hexdigest() for one in written},
        "stand_ins": sorted(site for site, _ in log.stand_ins if site.startswith("torch._inductor")),
    }


@check
def inductor_questions() -> dict[str, Any]:
    import torch._inductor.codegen.wrapper as wrapper
    import torch._inductor.scheduler as scheduler
    import torch._inductor.triton_bundler as bundler
    from triton import knobs

    directory = SCRATCH / "unordered"
    directory.mkdir()
    for name in "dbac":
        (directory / name).touch()
    return {
        "combo": scheduler.Scheduler.speedup_by_combo_kernel(None, []),
        "autotune_block": wrapper.PythonWrapperCodegen.generate_and_run_autotune_block(None),
        "listdir": bundler.os.listdir(str(directory)),
        "other_os_names": bundler.os.path.basename("a/b"),
        "knobs": [knobs.propagate_env, knobs.compilation.disable_line_info, knobs.compilation.store_binary_only],
    }


@check
def process_group() -> dict[str, Any]:
    import torch.distributed as dist

    dist.init_process_group(backend="nccl", init_method="tcp://127.0.0.1:1", world_size=2, rank=1)
    group = dist.new_group([0, 1], backend="gloo")
    with pretence.mode:
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        parts = [torch.empty(4, device="cuda") for _ in range(2)]
        dist.all_gather(parts, x, group=group)
        described = describe(parts[1])
    found = {"rank": dist.get_rank(), "size": dist.get_world_size(), "group": dist.get_world_size(group)}
    dist.destroy_process_group()
    return {**found, "gathered": described}


@check
def worker() -> dict[str, Any]:
    """The third wave, and what it must be before for: the imports of the worker."""
    pretence.before_worker()
    return {}


@check
def parameters() -> dict[str, Any]:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.nn.parameter import Parameter

    from hatch_model_cache.compile.pretend import parameters as asker

    class LoadedParameter(Parameter):
        """As vLLM's are: with a loader."""

        def __new__(cls, data: Any, **_: Any) -> Any:
            return super().__new__(cls, data=data, requires_grad=False)

        def __init__(self, data: Any, loader: str) -> None:
            self.loader = loader

    with pretence.mode:
        weight = LoadedParameter(torch.empty(2, 3, device="cuda"), loader="rows")
        plain = Parameter(torch.empty(2, device="cuda"))
        real = LoadedParameter(torch.zeros(2), loader="cpu")
        module = torch.nn.Module()
        module.weight, module.bias = weight, plain
        found = {
            "weight": [isinstance(weight, k) for k in (LoadedParameter, Parameter, FakeTensor)],
            "loader": weight.loader,
            "name": type(weight).__name__,
            "plain": [isinstance(plain, k) for k in (Parameter, FakeTensor)],
            "real": [type(real).__name__, isinstance(real, FakeTensor), real.tolist()],
            "moved": isinstance(module.half().weight, LoadedParameter),
        }
        asker.demote(module)
        found["demoted"] = [type(p).__name__ for p in module.parameters()]
        module.real = real
        try:
            asker.demote(module)
            found["real_weight"] = "taken"
        except RuntimeError as error:
            found["real_weight"] = str(error)
    return found


@check
def reloaded_parameters() -> dict[str, Any]:
    """vLLM makes weights again around their processing, and must get the same class back."""
    import vllm.model_executor.model_loader.reload.meta as meta
    from torch._subclasses.fake_tensor import FakeTensor
    from vllm.model_executor.parameter import BasevLLMParameter

    with pretence.mode:
        parameter = BasevLLMParameter.__new__(BasevLLMParameter, data=torch.empty(2, 3, device="cuda"))
        parameter.note = "kept"
        on_meta = meta.to_meta_tensor(parameter)
        with torch.device("cuda"):
            back = meta.materialize_meta_tensor(on_meta)
    return {
        "meta": [type(on_meta).__name__, str(on_meta.device), on_meta.note],
        "back": [isinstance(back, BasevLLMParameter), isinstance(back, FakeTensor), back.note, str(back.device)],
    }


@check
def communicators() -> dict[str, Any]:
    """Only several ranks have any."""
    if COUNT == 1:
        return {}
    import vllm.compilation.passes.fusion.allreduce_rms_fusion as fusion
    from vllm.distributed.device_communicators import custom_all_reduce, pynccl, shm_broadcast, symm_mem

    nccl = pynccl.PyNcclCommunicator(group=None, device="cuda:1")
    return {
        "nccl": [nccl.disabled, nccl.available],
        "custom": custom_all_reduce.CustomAllreduce(None, "cuda:1").disabled,
        "symmetric": symm_mem.SymmMemCommunicator(None, "cuda:1").disabled,
        "queue": shm_broadcast.MessageQueue.create_from_process_group(None, 1, 1),
        "workspace": fusion.get_fi_ar_workspace() is not None,
    }


@check
def model_loader() -> dict[str, Any]:
    import os

    import vllm.model_executor.model_loader as loading
    import vllm.model_executor.model_loader.dummy_loader as dummy
    import vllm.model_executor.models.registry as registry
    import vllm.utils.torch_utils as torch_utils
    import vllm.v1.worker.gpu_model_runner as runner
    from vllm.config.load import LoadConfig

    with pretence.mode:
        view = torch_utils.get_accelerator_view_from_cpu_tensor(torch.ones(3, dtype=torch.int32))
        dummy.initialize_single_dummy_weight(view)
    return {
        "loader": type(runner.get_model_loader(LoadConfig(load_format="safetensors"))).__name__,
        "is_a_dummy_loader": issubclass(loading.get_model_loader, dummy.DummyModelLoader),
        "view": describe(view),
        "pin_memory": [m.__name__ for m in list(sys.modules.values()) if vars(m).get("PIN_MEMORY") is True],
        "inspection": registry._run_in_subprocess(os.getpid) == os.getpid(),
    }


@check
def small_values_are_carried() -> dict[str, Any]:
    """What a loader does with scales; "read" of an unknown value is a stand-in's 1.0."""
    import vllm.model_executor.model_loader.dummy_loader as model_loading_of_vllm

    with pretence.mode, torch.no_grad():
        made = torch.zeros(3, device="cuda")
        scales = torch.nn.Parameter(torch.empty(3, device="cuda"), requires_grad=False)
        scales[:] = -4.0
        filled = scales.min().item()
        for place, value in enumerate((0.5, 0.25, 2.0)):
            scales.data[place].copy_(torch.tensor(value))
        found = {
            "made": made.max().item(),
            "filled": filled,
            "largest": scales.max().item(),
            "smaller": bool(scales[1] < scales[0]),
            "on the host": scales.cpu().double().sum().item(),
        }
        scales.data[0].copy_(torch.ones(100, 100, device="cuda").amax())
        found["of a large one"] = scales.max().item()
        scales.fill_(8.0)
        found["all written over"] = scales[2].item()
        times = torch.tensor([3, 1], device="cuda")
        scale = torch.nn.Parameter(torch.tensor(-1.0).to("cuda"), requires_grad=False)
        known = [scale.item()]
        model_loading_of_vllm.initialize_single_dummy_weight(scale.detach())
        found["a placeholder, and after loading"] = [*known, scale.item()]
        found["repeated"] = list(torch.empty(1, 2, device="cuda").repeat_interleave(times, dim=1).shape)
    return found


@check
def marlin_weights() -> dict[str, Any]:
    """What vLLM does for Marlin with the values of weights, on real tensors and on pretended ones: the same shapes."""
    import vllm.model_executor.layers.quantization.utils.marlin_utils_fp4 as marlin_utils_fp4
    from vllm.model_executor.layers.quantization.utils.quant_utils import unpack_cols

    known = Counter(log.stand_ins)
    packed = torch.arange(12, dtype=torch.int32).reshape(2, 6)
    real = unpack_cols(packed, 4, 2, 48)
    with pretence.mode:
        pretended = unpack_cols(packed.to("cuda"), 4, 2, 48)
        factor = marlin_utils_fp4._nvfp4_compute_scale_factor(torch.ones(4, 2, device="cuda"))
        try:
            told = str(torch.ones(3, device="cuda").nonzero().shape)
        except Exception as error:
            told = type(error).__name__
    return {
        "real": [list(real.shape), list(real.stride()), str(real.dtype)],
        "pretended": [list(pretended.shape), list(pretended.stride()), str(pretended.dtype)],
        "is": [type(pretended).__name__, str(pretended.device)],
        "factor": factor,
        "nonzero elsewhere": told,
        "stand-ins": sorted({answer for (site, answer) in log.stand_ins - known if "/quantization/utils/" in site}),
    }


pretence.close()


@check
def restored() -> dict[str, Any]:
    """Every replaced attribute is the object it was, and no function or class of the pretence is left in its owner."""

    def label(owner: Any, name: str) -> str:
        return f"{getattr(owner, '__name__', owner)!s:.60}.{name}"

    def ours(value: Any) -> bool:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, type):  # other objects may be lazy modules, which must not be asked
            return value.__module__.startswith("hatch_model_cache")
        return isinstance(value, types.FunctionType) and "/compile/pretend/" in value.__code__.co_filename

    owners = {id(owner): owner for owner, _, _ in before.values()}
    return {
        "attributes": len(before),
        "changed": [label(o, name) for o, name, was in before.values() if vars(o).get(name, MISSING) is not was],
        "left": [label(o, name) for o in owners.values() for name, value in list(vars(o).items()) if ours(value)],
    }


@check
def restored_without_an_attribute() -> dict[str, Any]:
    import triton.backends.nvidia.driver as nvidia
    from triton import knobs
    from triton.backends import backends

    return {
        "only_lift_cpu_tensors": torch._C._only_lift_cpu_tensors(),
        "backend_driver": backends["nvidia"].driver is nvidia.CudaDriver,
        "backend_driver_name": backends["nvidia"].driver.__module__,
        "knobs": {k: v for k, v in vars(knobs.compilation).items() if k in ("disable_line_info", "store_binary_only")},
        "propagate_env": knobs.propagate_env,
        "cuda": torch.cuda.is_available(),
        "cpu_works": (torch.ones(2, 2) @ torch.ones(2, 2)).tolist(),
        "closed_twice": pretence.close(),
    }


results["patches"] = [[p.owner, p.name, p.why, p.checked] for p in pretence.patches.done]
sys.stdout.flush()
print()
print(json.dumps(results))
sys.stdout.flush()
