"""The road of the tests: a recipe, its compile, its wheel, and a serving host with its own HOME, directories and
virtual environment. The host's GPU is pretended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatch_model_cache.compiling.rehearsal import Report, rehearse

ROOT = Path(__file__).resolve().parents[2]
SERVE_ARGS = ("--max-model-len", "512", "--max-num-batched-tokens", "8192", "--max-num-seqs", "1024")


@dataclass(frozen=True)
class Host:
    """python: interpreter of the serving environment; place: everything else of the host; through: command that the
    engine is started through."""

    python: Path
    place: Path
    through: tuple[str, ...] = ()

    @property
    def cache_root(self) -> Path:
        """VLLM_CACHE_ROOT of this host."""
        return self.place / "cache"

    @property
    def work(self) -> Path:
        """Working directory of the engine."""
        return self.place / "work"

    def pip_install(self, *wheels: Path) -> None:
        """`pip install` of local wheels, from nowhere else."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-index"]
        links = [part for wheel in wheels for part in ("--find-links", str(wheel.parent))]
        subprocess.run([*command, "--force-reinstall", *links, *map(str, wheels)], check=True)

    def pip_uninstall(self, *names: str) -> None:
        """Take distributions away again."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "uninstall", "--quiet", "--yes"]
        subprocess.run([*command, *names], check=True)

    def model_cache(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The `model-cache` command of this host."""
        command = [str(self.python.with_name("model-cache")), *arguments]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.place / "home")}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def serve(
        self,
        model: str,
        target: str,
        *,
        arguments: Sequence[str] = SERVE_ARGS,
        root: Path | None = None,
        environment: Mapping[str, str] | None = None,
        tokenizer: bool = False,
    ) -> Report:
        """An unmodified `vllm serve` up to the first call of the model; the plug-in is off unless told else.

        tokenizer: the model's directory has its files, and the engine reads them; neither is in the key.
        """
        for directory in (self.place / "home", self.work):
            directory.mkdir(parents=True, exist_ok=True)
        whole = {
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.place / "home"),
            "VLLM_CACHE_ROOT": str(root or self.cache_root),
            "MODEL_CACHE_DISABLE": "1",
            "LANG": "C.UTF-8",
            **(environment or {}),
        }
        command = [*self.through, str(self.python.with_name("vllm")), "serve", model, *arguments, "--port", "8767"]
        command += [] if tokenizer else ["--skip-tokenizer-init"]
        return rehearse(command, target, environment=whole, cwd=self.work, log=self.place / "engine.log")


@dataclass(frozen=True)
class Built:
    """One recipe, compiled and packed: where, and under which names its model is served."""

    project: Path
    artifacts: Path
    wheel: Path
    hub_id: str
    directory: str

    def manifest(self) -> dict[str, Any]:
        """The wheel's manifest."""
        with zipfile.ZipFile(self.wheel) as archive:
            [name] = [n for n in archive.namelist() if n.endswith("/manifest.json")]
            found: dict[str, Any] = json.loads(archive.read(name))
            return found

    @property
    def name(self) -> str:
        """Distribution name of the wheel."""
        return str(self.manifest()["name"])


def serving_environment(engine: str, own_wheel: Path) -> Path:
    """The interpreter of a second environment with an engine, at another path, and with this project's wheel."""
    sys.path.append(str(ROOT / "engines"))
    from prepare import prepare

    python = prepare(engine, ROOT / ".engines" / "serving" / engine)
    Host(python, Path()).pip_install(own_wheel)
    return python


def site_packages(python: Path) -> str:
    """Where the packages of an environment lie."""
    [directory] = python.parent.parent.glob("lib/python3.*/site-packages")
    return str(directory)


def write_recipe(
    project: Path,
    model_dir: Path,
    model: str,
    served_as: Sequence[str],
    targets: Sequence[str],
    *,
    serve_args: Sequence[str] = SERVE_ARGS,
    environment: Mapping[str, str] | None = None,
    drafts: Mapping[str, Path] | None = None,
    engine: str = "vllm==0.33.0",
    packages: str | None = None,
    components: Sequence[str] = (),
) -> Path:
    """A recipe project for `model_dir`, and the directories of `drafts`, under `project`.

    packages: the option `packages-directory`; components: the option of that name.
    """
    from hatch_model_cache import targets as known
    from hatch_model_cache.recipe import naming

    loaded = [known.load(name) for name in targets]
    hardware = naming.hardware_name(loaded) or "several"
    shutil.copytree(model_dir, project / "model")
    # JSON's strings are TOML's
    lists = [json.dumps(list(items), ensure_ascii=False) for items in (served_as, targets, serve_args)]
    drafts = drafts or {}
    for name, directory in drafts.items():
        shutil.copytree(directory, project / "drafts" / Path(name).name)
    named = [f'{json.dumps(name)} = "drafts/{Path(name).name}"' for name in drafts]
    variables = [f"{name} = {json.dumps(value)}" for name, value in (environment or {}).items()]
    (project / "pyproject.toml").write_text(
        f"""[build-system]
requires = ["hatchling", "hatch-model-cache"]
build-backend = "hatchling.build"
[project]
name = "{naming.distribution_name(model, hardware, with_org=False)}"
version = "1.0.0"
requires-python = ">=3.11"
[tool.hatch.build.hooks.model-cache]
engine = "{engine}"
model = "{model}"
config = "model"
served-as = {lists[0]}
targets = {lists[1]}
hardware = "{hardware}"
serve-args = {lists[2]}
environment = {{ {", ".join(variables)} }}
drafts = {{ {", ".join(named)} }}
components = {json.dumps(list(components))}
{f"packages-directory = {json.dumps(packages)}" if packages else ""}
"""
    )
    return project


def compile_recipe(
    project: Path, out: Path, engine: str, prefix: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """`model-cache compile` as a user runs it."""
    command = [*prefix, sys.executable, "-m", "model_cache", "compile", str(project), "--out", str(out), "--json"]
    whole = {**os.environ, "MODEL_CACHE_PYTHON": engine, **environment}
    return subprocess.run(command, env=whole, capture_output=True, text=True, timeout=900, check=False)


def pack(project: Path, artifacts: Path) -> Path:
    """The wheel of compiled artifacts, by hatchling."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=project, env={**os.environ, "MODEL_CACHE_ARTIFACTS": str(artifacts)}, check=True)
    [wheel] = (project / "dist").glob("*.whl")
    return wheel
