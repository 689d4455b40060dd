"""Programs that use torch.compile, and the recipes of their wheels: what the tests of the engine `torch` share."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import cpu_hosts
from engine.hosts import compile_recipe, pack
from hatch_model_cache.recipe.file import load_recipe
from model_cache.wheel import calls, mega
from model_cache.wheel.lookup import open_payload
from model_cache.wheel.verify import blob_path, verify

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 400


@dataclass(frozen=True)
class Program:
    """A recipe's project, and a host that may get its wheel."""

    project: Path
    host: cpu_hosts.CpuHost
    path: str = ""
    """PYTHONPATH of the program."""

    def compile(self, engine: str) -> Path:
        """The recipe's wheel."""
        done = compile_recipe(self.project, self.project / "artifacts", engine)
        assert done.returncode == 0, done.stdout + done.stderr
        return pack(self.project, self.project / "artifacts")

    def run(self, cache: Path, wheel: str, script: str = "torch_program.py") -> dict[str, Any]:
        """As `start`: what it prints, and how often g++ compiled."""
        done, compiles = self.start(cache, wheel, script)
        assert done.returncode == 0, done.stderr[-3000:]
        return {**json.loads(done.stdout), "compiles": compiles}

    def start(
        self, cache: Path, wheel: str, script: str = "torch_program.py", **environment: str
    ) -> tuple[subprocess.CompletedProcess[str], int]:
        """One process of a script in `SCRIPTS`; what came of it, and how often g++ compiled."""
        recipe = load_recipe(self.project)
        log = cache.with_suffix(".gxx")
        command = [str(self.host.python), str(SCRIPTS / script), str(self.project / "program")]
        variables = {
            "PATH": str(self.host._tools(compiler=True)),
            "HOME": str(self.host.place),
            "GXX_LOG": str(log),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "PYTHONPATH": self.path,
            **environment,
        }
        done = subprocess.run(
            [*command, str(recipe.factory), wheel],
            env=variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=self.host.work,
        )
        lines = log.read_text().splitlines() if log.exists() else []
        return done, sum(line not in ("-v", "--version") for line in lines)


def project(place: Path, name: str, mode: str = "mega") -> Path:
    """The example's project; for another name, with a module of `PROGRAMS` in place of its own."""
    made = place / "examples" / "torch-block"
    shutil.copytree(ROOT / "examples" / "torch-block", made)
    text = (made / "pyproject.toml").read_text().replace("x86-64-avx512", cpu_hosts.here())
    if name != "block":
        shutil.copyfile(PROGRAMS / f"{name}.py", made / "program" / f"{name}.py")
        text = text.replace("block:make", f"{name}:make").replace("torch-block", f"torch-{name}")
    (made / "pyproject.toml").write_text(text + f'mode = "{mode}"\n')
    return made


def keys_in(wheel: Path) -> dict[str, list[str]]:
    """torch's keys of the parts of a mega cache, by their kind."""
    found: dict[str, list[str]] = {}
    for part in mega.parts(_file(wheel, "mega.bin")):
        found.setdefault(part.kind, []).append(part.key)
    return {kind: sorted(keys) for kind, keys in found.items()}


def record_in(wheel: Path) -> calls.Calls:
    """What the compiled function in a wheel may be called with."""
    return calls.parse(_file(wheel, calls.FILE))


def _file(wheel: Path, name: str) -> bytes:
    with open_payload(str(wheel)) as payload:
        [entry] = verify(payload).manifest.entries
        [file] = [file for file in entry.files if file.path.endswith(f"/{name}")]
        return payload.read(blob_path(file.sha256), file.size)
