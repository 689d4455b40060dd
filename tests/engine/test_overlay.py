"""A cache root that cannot be written to: the real vLLM ends on it, and starts warm on an overlay that leads there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.hosts import Host, write_recipe
from engine.test_road import compile_recipe, pack
from factories import files_of, install
from model_cache.errors import CompileError

pytestmark = [pytest.mark.engine, pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")]

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "models" / "llama-tiny"
H100 = "h100-sxm5-80gb"


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """An empty cache root that `mount -o remount,ro` makes read-only for everybody, root included."""
    base = tmp_path / "image"
    base.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(base)], check=True)
    yield base
    subprocess.run(["umount", str(base)], check=True)


@pytest.fixture
def host(tmp_path: Path, engine_python: str) -> Host:
    host = Host(Path(engine_python), tmp_path / "host")
    shutil.copytree(MODEL, host.work / "llama-tiny")
    (host.place / "home").mkdir()
    return host


@pytest.fixture
def site(tmp_path: Path, engine_python: str) -> Path:
    """Where the wheel and this project, with its plug-in, are installed beside the engine."""
    project = write_recipe(tmp_path / "recipe", MODEL, "example/llama-tiny", ["./llama-tiny"], [H100])
    done = compile_recipe(project, tmp_path / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    dist = tmp_path / "dist"
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(dist), str(ROOT)], check=True)
    [own] = dist.glob("*.whl")
    return install(pack(project, tmp_path / "artifacts"), install(own, tmp_path / "site"))


def deploy(host: Host, site: Path, *arguments: str) -> dict[str, Any]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(host.place / "home"), "PYTHONPATH": str(site)}
    command = [str(host.python), "-m", "model_cache", "deploy", "--assume-target", H100, "--json", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_read_only_root_ends_a_start_and_its_overlay_is_warm(base: Path, host: Host, site: Path) -> None:
    deploy(host, site, "--root", str(base))
    subprocess.run(["mount", "-o", "remount,ro", str(base)], check=True)
    before = files_of(base)
    on = {"PYTHONPATH": str(site), "VLLM_FORCE_AOT_LOAD": "1"}
    try:
        report = host.serve("./llama-tiny", H100, root=base, environment=on)
        assert "Read-only file system" in (report.error or "")
    except CompileError:
        assert "Read-only file system" in (host.place / "engine.log").read_text()

    over = host.place / "scratch"
    said = deploy(host, site, "--root", str(base), "--overlay", str(over))
    assert said["environment"] == {"VLLM_CACHE_ROOT": str(over)}
    on |= {"MODEL_CACHE_DISABLE": "0", "MODEL_CACHE_ASSUME_TARGET": H100}
    report = host.serve("./llama-tiny", H100, root=Path(said["environment"]["VLLM_CACHE_ROOT"]), environment=on)
    assert report.warm, report
    log = (host.place / "engine.log").read_text()
    assert "model-cache: hit backbone rank 0_0 in" in log
    assert "model-cache: deployed" not in log, "what the overlay leads to was not copied"

    [model] = over.glob("torch_compile_cache/torch_aot_compile/*/rank_0_0/model")
    assert model.is_symlink()
    assert model.is_relative_to(over)
    assert model.resolve().is_relative_to(base)
    added = model.parents[1] / "inductor_cache"
    assert added.is_dir()
    assert not added.is_symlink()
    assert files_of(base) == before
