"""`model_cache.torch.load`, with a stand-in for torch: what reaches torch, and what does not."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import model_cache.torch
from factories import make_cpu, make_cpu_document, make_cpu_host, make_host, make_wheel, members, record, write_zip
from model_cache.engine import mends
from model_cache.errors import DamagedError, MismatchError, ModelCacheError, NotTrustedError, UsageError
from model_cache.machine.host import Host
from model_cache.store import deploy
from model_cache.store.place import UnsafePlaceError
from model_cache.wheel import calls, mega
from model_cache.wheel.names import data_package
from model_cache.wheel.payload import Payload
from test_calls import CALLS
from test_torch import EVIL, GOOD, mega_bytes

NAME = "model-cache-block-x86-64-avx512"
ENTRY = f"torch/{'3' * 64}"
CACHE = mega_bytes(("inductor", "f1", GOOD), ("inductor", "f2", GOOD), ("aot_autograd", "a1", GOOD))
KERNEL = b"\x7fELF a kernel"
ENGINE = {"engine.name": "torch", "engine.version": "2.13.0", "entries.0.component": mega.COMPONENT}


class FakeTorch:
    """Stands for the four modules of torch 2.13.0 that `load` uses."""

    def __init__(self, cache: Path) -> None:
        self.given: list[bytes] = []
        self.takes = True
        self.counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.cache = cache
        self.named = SimpleNamespace(place="as torch does")

    def load_cache_artifacts(self, data: bytes) -> Any:
        self.given.append(data)
        found: dict[str, list[str]] = {}
        for part in mega.parts(data):
            found.setdefault(part.kind, []).append(part.key)
        return SimpleNamespace(artifacts=found) if self.takes else None

    def cache_dir(self) -> str:
        self.cache.mkdir(exist_ok=True)
        return str(self.cache)

    def modules(self) -> dict[str, ModuleType]:
        contents: dict[str, dict[str, Any]] = {
            "torch": {},
            "torch.compiler": {"load_cache_artifacts": self.load_cache_artifacts},
            "torch._dynamo": {},
            "torch._dynamo.utils": {"counters": self.counters},
            "torch._inductor": {},
            "torch._inductor.runtime": {},
            "torch._inductor.runtime.cache_dir_utils": {"cache_dir": self.cache_dir},
        }
        made = {name: ModuleType(name) for name in contents}
        for name, module in made.items():
            vars(module).update(contents[name], __path__=[])
            if "." in name:
                parent, _, child = name.rpartition(".")
                setattr(made[parent], child, module)
        return made


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch(tmp_path / "torchinductor")
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    mend = mends.Mend(
        "names", "torch", "2.13.0", "2.13.0+cpu", "kernels are found", lambda: (fake.named, "place", "neutral")
    )
    monkeypatch.setattr(mends, "TORCH_MENDS", (mend,))
    monkeypatch.setattr(model_cache.torch, "_mended", set())
    be(monkeypatch, host())
    return fake


def host(**changes: Any) -> Host:
    return make_cpu_host(engine="torch", engine_version="2.13.0", **changes)


def be(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setattr(model_cache.torch, "read_host", lambda engine: host)


def wheel(folder: Path, cache: bytes = CACHE, held: dict[str, bytes] | None = None, **changes: Any) -> str:
    held = held or {"rank_0_0/mega.bin": cache}
    contents = {ENTRY: {**held, "inductor/ab/cab1.main.so": KERNEL}}
    document = make_cpu_document(contents, name=NAME, changes=ENGINE | changes)
    files = members(document, contents)
    info = f"{data_package(NAME)}-1.0.0.dist-info"
    files[f"{info}/RECORD"] = record(files, info)
    folder.mkdir(exist_ok=True)
    return str(write_zip(folder / f"{data_package(NAME)}-1.0.0-cp311-none-linux_x86_64.whl", files))


def test_torch_is_given_what_is_in_the_wheel(torch: FakeTorch, tmp_path: Path) -> None:
    loaded = model_cache.torch.load(wheel(tmp_path / "dist"))
    assert torch.given == [CACHE]
    assert (torch.cache / "ab" / "cab1.main.so").read_bytes() == KERNEL
    assert [p.name for p in (torch.cache / "ab").iterdir()] == ["cab1.main.so"]
    assert (loaded.name, loaded.version, loaded.target) == (NAME, "1.0.0", "x86-64-avx512")
    assert (loaded.parts, loaded.kernels) == ({"inductor": 2, "aot_autograd": 1}, 1)
    assert (loaded.mended, torch.named.place) == (("kernels are found",), "neutral")
    assert loaded.origin == "not signed: intact, origin unknown"


def test_a_compiled_function_is_not_unpickled_until_it_is_bound(torch: FakeTorch, tmp_path: Path) -> None:
    held = {f"rank_0_0/{calls.ARTIFACT}": EVIL, f"rank_0_0/{calls.FILE}": CALLS.to_json_bytes()}
    path = wheel(tmp_path / "dist", held=held, **{"entries.0.component": calls.COMPONENT})
    loaded = model_cache.torch.load(path)  # there is nothing to unpickle with
    assert (torch.given, loaded.parts, loaded.kernels) == ([], {"standalone": 1}, 1)
    assert loaded.use() == model_cache.torch.Use(0, 0)
    assert loaded.function is not None
    assert loaded.function.record == CALLS


def test_a_compiled_function_s_record_is_checked(torch: FakeTorch, tmp_path: Path) -> None:
    held = {f"rank_0_0/{calls.ARTIFACT}": EVIL, f"rank_0_0/{calls.FILE}": b'{"format": 2}'}
    path = wheel(tmp_path / "dist", held=held, **{"entries.0.component": calls.COMPONENT})
    with pytest.raises(DamagedError, match=r"calls\.json: its format is not 1"):
        model_cache.torch.load(path)


def test_a_mega_cache_is_bound_to_nothing(torch: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'is of mode "mega": torch\.compile finds it'):
        model_cache.torch.load(wheel(tmp_path / "dist")).bind(object())


def test_use_counts_from_the_load_on(torch: FakeTorch, tmp_path: Path) -> None:
    torch.counters["aot_autograd"].update({"autograd_cache_hit": 3, "autograd_cache_miss": 2})
    loaded = model_cache.torch.load(wheel(tmp_path / "dist"))
    assert loaded.use() == model_cache.torch.Use(0, 0)
    torch.counters["aot_autograd"].update(
        {"autograd_cache_hit": 1, "autograd_cache_miss": 2, "autograd_cache_bypass": 4}
    )
    assert loaded.use() == model_cache.torch.Use(hits=1, misses=6)


def test_another_file_under_a_kernel_s_name_is_replaced(torch: FakeTorch, tmp_path: Path) -> None:
    kernel = torch.cache / "ab" / "cab1.main.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"something else")
    model_cache.torch.load(wheel(tmp_path / "dist"))
    assert kernel.read_bytes() == KERNEL
    before = kernel.stat().st_ino
    model_cache.torch.load(wheel(tmp_path / "dist"))
    assert kernel.stat().st_ino == before  # the same bytes stay


def test_mends_can_be_turned_off(torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mends.VARIABLE, "0")
    assert model_cache.torch.load(wheel(tmp_path / "dist")).mended == ()
    assert torch.named.place == "as torch does"


def test_a_wheel_for_another_cpu_is_refused(torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    be(monkeypatch, host(cpu=make_cpu(vec_isa="avx2", capability="AVX2")))
    with pytest.raises(MismatchError, match="vec_isa is avx2, the wheel was built for avx512"):
        model_cache.torch.load(wheel(tmp_path / "dist"))
    assert (torch.given, torch.cache.exists()) == ([], False)


def test_a_damaged_wheel_is_refused(torch: FakeTorch, tmp_path: Path) -> None:
    path = wheel(tmp_path / "dist", **{"entries.0.files.0.sha256": "0" * 64})
    with pytest.raises(DamagedError):
        model_cache.torch.load(path)
    assert (torch.given, torch.cache.exists()) == ([], False)


def test_a_cache_that_is_none_is_refused(torch: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="its cache of torch has the format 9, known is 1"):
        model_cache.torch.load(wheel(tmp_path / "dist", mega_bytes(version=9)))
    assert torch.given == []


def test_an_unmodified_program_cannot_use_a_cpu_s_wheel(torch: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match=r"is for a CPU: .* only a program that calls `model_cache\.torch\.load`"):
        model_cache.torch.main([wheel(tmp_path / "dist")])
    assert (torch.given, torch.cache.exists()) == ([], False)


def test_an_unmodified_program_finds_a_gpu_s_wheel(
    torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    be(monkeypatch, make_host(engine="torch", engine_version="2.14.0"))
    contents = {ENTRY: {"rank_0_0/mega.bin": CACHE}}
    path = make_wheel(tmp_path / "dist", contents, changes=ENGINE | {"engine.version": "2.14.0"})
    assert model_cache.torch.main([str(path)]) == 0
    assert torch.given == [CACHE]
    assert f"3 parts for h100-sxm5-80gb in {torch.cache}" in capsys.readouterr().out


def test_a_compiled_function_is_nothing_for_an_unmodified_program(
    torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be(monkeypatch, make_host(engine="torch", engine_version="2.14.0"))
    contents = {ENTRY: {f"rank_0_0/{calls.ARTIFACT}": GOOD, f"rank_0_0/{calls.FILE}": CALLS.to_json_bytes()}}
    changes = ENGINE | {"engine.version": "2.14.0", "entries.0.component": calls.COMPONENT}
    path = make_wheel(tmp_path / "dist", contents, changes=changes)
    with pytest.raises(MismatchError, match="only a program that binds it to its module uses it"):
        model_cache.torch.main([str(path)])
    assert not torch.cache.exists()


def test_a_wheel_without_a_mega_cache_is_refused(torch: FakeTorch, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="holds no cache of torch for x86-64-avx512"):
        model_cache.torch.load(wheel(tmp_path / "dist", **{"entries.0.component": "other"}))
    assert torch.given == []


def test_an_unsigned_wheel_is_refused_where_signatures_are_required(
    torch: FakeTorch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_CACHE_POLICY", "require")
    with pytest.raises(NotTrustedError, match="origin is unknown"):
        model_cache.torch.load(wheel(tmp_path / "dist"))
    assert torch.given == []


def test_what_torch_does_not_take_is_an_error(torch: FakeTorch, tmp_path: Path) -> None:
    torch.takes = False
    with pytest.raises(ModelCacheError, match="torch has taken nothing of"):
        model_cache.torch.load(wheel(tmp_path / "dist"))


def test_a_cache_directory_that_others_can_change_is_refused(torch: FakeTorch, tmp_path: Path) -> None:
    torch.cache.mkdir()
    torch.cache.chmod(0o777)
    with pytest.raises(UnsafePlaceError):
        model_cache.torch.load(wheel(tmp_path / "dist"))
    assert (torch.given, list(torch.cache.iterdir())) == ([], [])


def test_such_a_wheel_goes_into_no_cache_root(tmp_path: Path) -> None:
    from model_cache.wheel.archive import WheelPayload

    payload: Payload = WheelPayload(wheel(tmp_path / "dist"))
    with payload, pytest.raises(UsageError, match=r"loads it with `model_cache\.torch\.load`"):
        deploy.deploy(payload, str(tmp_path / "root"), host())
    assert not (tmp_path / "root").exists()
