"""The engine's piecewise path: what its backend does is recorded (the engine's modules are fakes), what its key is made
of, which of its files are shipped, and what may be in them."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hatch_model_cache.compile.engines import vllm_piecewise
from model_cache.engine import lookups, pieces, status
from model_cache.store import state
from model_cache.store.root import Root
from model_cache.store.state import DeployedEntry, DeployedFile, State
from model_cache.wheel import allowed_globals, mega
from model_cache.wheel.manifest import File

KEY = "0123456789"
PIECE = "rank_0_0/backbone/artifact_compile_range_1_8192_subgraph_0"
WHEEL = "model-cache-x-h100-sxm5-80gb"


class Backend:
    """Like the engine's: loads some pieces and compiles others, as its counters then show."""

    def __init__(self, root: Path, loaded: int, compiled: int) -> None:
        directory = root / lookups.PIECEWISE / KEY / "rank_0_0" / "backbone"
        self.compilation_config = SimpleNamespace(local_cache_dir=str(directory))
        self._loaded, self._compiled = loaded, compiled

    def __call__(self, graph: str, inputs: str) -> str:
        if graph == "broken":
            raise RuntimeError(graph)
        counter = sys.modules["vllm.compilation.counter"].compilation_counter
        counter.num_compiled_artifacts_loaded += self._loaded
        counter.num_inductor_compiles += self._compiled
        return graph + inputs


@pytest.fixture
def log() -> list[tuple[str, bool]]:
    return []


@pytest.fixture
def root(tmp_path: Path, log: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache root with a deployed wheel, of an engine whose backend is watched."""
    counter, envs = ModuleType("vllm.compilation.counter"), ModuleType("vllm.envs")
    counter.compilation_counter = SimpleNamespace(num_compiled_artifacts_loaded=7, num_inductor_compiles=2)
    envs.VLLM_USE_AOT_COMPILE = False
    for one in (counter, envs):
        monkeypatch.setitem(sys.modules, one.__name__, one)
    module = ModuleType(pieces.MODULE)
    module.VllmBackend = Backend
    monkeypatch.setattr(Backend, "__call__", Backend.__call__)  # put back afterwards
    for _ in range(2):  # two do no harm
        pieces.wrap(module, str(tmp_path), lambda message, *, alarm=False: log.append((message, alarm)))
    path = tmp_path / lookups.PIECEWISE / KEY / PIECE
    path.parent.mkdir(parents=True)
    path.write_bytes(b"piece")
    file = DeployedFile(PIECE, "0" * 64, 5, path.stat().st_mtime_ns)
    entry = DeployedEntry(f"{lookups.PIECEWISE}/{KEY}", True, (file,))
    with Root.open(str(tmp_path)) as opened:
        state.save(opened, State(WHEEL, "1.0", "0" * 64, "deployed", ("h100-sxm5-80gb",), (entry,)))
    return tmp_path


def report(root: Path) -> status.Report:
    with Root.open(str(root)) as opened:
        return status.report(opened)[0]


def test_a_model_whose_every_piece_was_loaded_is_a_hit(root: Path, log: list[tuple[str, bool]]) -> None:
    assert Backend(root, 3, 0)("a", "b") == "ab"
    [(line, alarm)] = log
    assert line.startswith("hit backbone rank 0_0 in 0.0 s (built for h100-sxm5-80gb)")
    assert not alarm
    [wheel] = report(root).wheels
    assert (wheel.used, wheel.intact) == (True, True)
    assert [(f.key, f.hit, f.parts) for f in wheel.looked_up] == [(KEY, True, 3)]


@pytest.mark.parametrize(("loaded", "compiled"), [(3, 1), (0, 0)])
def test_one_that_was_compiled_in_part_is_none(
    root: Path, log: list[tuple[str, bool]], loaded: int, compiled: int
) -> None:
    Backend(root, loaded, compiled)("a", "b")
    [(line, alarm)] = log
    assert line.startswith(f"miss backbone rank 0_0: what {WHEEL} has for it could not be loaded")
    assert alarm
    assert not report(root).wheels[0].used


def test_what_is_compiled_for_an_aot_artifact_is_no_look_up(
    root: Path, log: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm.envs"], "VLLM_USE_AOT_COMPILE", True)
    assert Backend(root, 3, 0)("a", "b") == "ab"
    assert log == []


def test_what_the_backend_raises_goes_through(root: Path, log: list[tuple[str, bool]]) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        Backend(root, 3, 0)("broken", "b")
    assert log == []


def test_a_path_is_told_as_it_is_on_the_serving_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("own", "others"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}-link").symlink_to(tmp_path / name)
    own, others = f"{tmp_path}/own-link", f"{tmp_path}/others-link"
    monkeypatch.setattr(sys, "path", [own, others, "/usr/lib/python3.11"])
    monkeypatch.setattr(vllm_piecewise, "_packages", lambda: own)
    on_host = vllm_piecewise.on_host
    assert on_host(f"{own}/vllm/a.py", None) == f"{tmp_path}/own/vllm/a.py"
    assert on_host(f"{own}/vllm/a.py", "/there") == "/there/vllm/a.py"
    assert on_host(own, "/there") == "/there"
    assert on_host(f"{others}/b.py", "/there") == f"{tmp_path}/others/b.py"
    assert on_host("/usr/lib/python3.11/enum.py", "/there") == "/usr/lib/python3.11/enum.py"
    assert on_host("<string>", "/there") == "<string>"


def test_files_that_only_real_weights_are_traced_through_are_in_the_key() -> None:
    class Weight:
        @classmethod
        def __torch_function__(cls) -> None: ...

    class Inherited(Weight):
        pass

    class Native:
        __torch_function__ = len

    weights = [SimpleNamespace(_declared_class=one) for one in (Weight, Inherited, Native)] + [SimpleNamespace()]
    model = SimpleNamespace(parameters=lambda: iter(weights))
    assert vllm_piecewise._hidden_files(model) == {__file__}


def test_of_what_an_engine_leaves_only_what_a_start_reads_is_shipped(tmp_path: Path) -> None:
    model = tmp_path / KEY / "rank_0_0" / "backbone"
    wanted = {
        "vllm_compile_cache.py": "vllm-piecewise-index",
        "artifact_binary": "vllm-piece",
        "artifact_unpacked/aotautograd/aab/c0ffee": "vllm-piece",
        "artifact_unpacked/fxgraph/ab/fab/c0ffee": "vllm-piece",
    }
    others = ("cache_key_factors.json", "computation_graph.py", "artifact_unpacked/cd/x.py", "other/fxgraph/y")
    for name in (*wanted, *others):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_bytes(b"x")
    found: Any = vllm_piecewise.described(model)
    assert {file["path"]: file["kind"] for file in found} == {
        f"rank_0_0/backbone/{name}": kind for name, kind in wanted.items()
    }
    assert vllm_piecewise.pieces(found) == 2


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def content(data: bytes) -> bytes:
    return number(len(data)) + data


def sealed(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "big") + data


def piece(pickled: bytes) -> bytes:
    """An artifact of ``torch._inductor.standalone_compile`` that holds one pickle."""
    part = content(base64.b64encode(b"key")) + content(pickled)
    cache = sealed(number(1) + content(base64.b64encode(b"inductor")) + number(1) + part)
    return sealed(b"".join(map(content, (mega.HEADER, b"torch's hash", base64.b64encode(b"key"), cache))))


def test_pickles_within_a_piece_are_looked_into() -> None:
    rules = allowed_globals.rules("vllm")
    harmless, evil = pickle.dumps({"a": 1}), pickle.dumps(subprocess.Popen)
    assert allowed_globals.look(rules, mega.PIECE, piece(harmless)) == []
    for data in (piece(evil), evil):  # as one file, and unpacked
        assert allowed_globals.look(rules, mega.PIECE, data) == ["would import subprocess.Popen (once)"]


def test_every_piece_is_looked_into_whatever_a_manifest_says_of_it() -> None:
    rules = allowed_globals.rules("vllm")
    for name, looked in (("artifact_x", True), ("fxgraph/ab/c0ffee", True), (vllm_piecewise.INDEX, False)):
        file = File(f"rank_0_0/backbone/{name}", "0" * 64, 1, "0644", "other", ())
        assert rules.applies(mega.PIECE, file, b"x") is looked


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (piece(b"N.")[:-1], "its checksum is wrong"),
        (sealed(content(b"AOTCompiledArtifact")), "does not begin with CacheCompiledArtifact"),
        (sealed(content(mega.HEADER) + number(99)), "ends at byte 41 in the middle of a part"),
        (sealed(piece(b"N.")[4:] + b"x"), "goes on after its end"),
        (b"", "its checksum is wrong"),
    ],
)
def test_what_is_no_piece_may_not_be_loaded(data: bytes, said: str) -> None:
    assert allowed_globals.look(allowed_globals.rules("vllm"), mega.PIECE, data) == [f"is no mega cache: {said}"]
