"""The whole road without a GPU: recipe → wheel → pip install → deploy → an unmodified `vllm serve` loads it.

    make demo

Builds a wheel for a tiny Llama and one for the real Llama-3.1-8B configuration, both for an H100, with no GPU and no
weights; installs them with pip into a serving environment of its own; deploys; and starts `vllm serve` under each
served name with another HOME, working directory, cache root and virtual environment than the build had.

The GPU is PRETENDED. The engine is started for real and stopped where it would run the model. This shows that the cache
is found and loaded with nothing compiled; it cannot show that kernels are right or fast.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "engines"), str(ROOT / "tests")]

from prepare import prepare  # noqa: E402

from fakes.loopback_hub import LoopbackHub  # noqa: E402
from hatch_model_cache.compiling.rehearsal import Report, rehearse  # noqa: E402

ENGINE = "vllm-0.33.0"
TARGET = "h100-sxm5-80gb"
PLACE = ROOT / ".demo"


@dataclass(frozen=True)
class Start:
    """One start of `vllm serve`: what it is called here, the model string, and whether the Hub is reachable."""

    title: str
    served_as: str
    offline: bool = False


@dataclass(frozen=True)
class Model:
    """One recipe of examples/, and the local directory its model lies in on the serving host."""

    recipe: str
    hub_id: str
    local: str
    flags: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def wheel_name(self) -> str:
        """Distribution name of the recipe's wheel."""
        return f"model-cache-{self.hub_id.split('/')[1].lower()}-{TARGET}"


MODELS = (
    Model(
        "llama-tiny",
        "example/llama-tiny",
        "llama-tiny",
        ("--max-model-len", "512", "--max-num-batched-tokens", "8192", "--max-num-seqs", "1024"),
        {},
    ),
    Model(
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "llama",
        ("--max-model-len", "8192", "--max-num-batched-tokens", "8192", "--max-num-seqs", "1024"),
        {"VLLM_USAGE_SOURCE": "production-docker-image"},
    ),
)


def main() -> int:
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    say("hatch-model-cache demo. There is no GPU here: the H100 is pretended, and no kernel runs.")
    engine = prepare(ENGINE, ROOT / ".engines" / ENGINE)
    shutil.rmtree(PLACE / "host", ignore_errors=True)
    host = PLACE / "host"  # stands for the serving host: its own HOME, working directory, cache root and environment
    for name in ("home", "work", "cache", "logs"):
        (host / name).mkdir(parents=True)
    with LoopbackHub({m.hub_id: ROOT / "examples" / m.recipe / "model" for m in MODELS}) as hub:
        wheels = [build(model, engine, snapshot(hub, model, host)) for model in MODELS]
        serving = prepare(ENGINE, PLACE / "serving" / "environment")
        install(serving, wheels)
        deploy(serving, host)
        rows = [row for model in MODELS for row in starts(model, serving, host, hub)]
    code = report(rows)
    say("model-cache status: what the engine's own processes have recorded")
    print(run([str(serving.with_name("model-cache")), "status", "--root", str(host / "cache")]).rstrip())
    return code


def build(model: Model, engine: Path, snapshot_path: str) -> Path:
    """`python -m build --wheel` of the recipe, with the serving host's offline name added to `served-as`."""
    project = PLACE / "recipes" / model.recipe
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(ROOT / "examples" / model.recipe, project)
    recipe = project / "pyproject.toml"
    text = recipe.read_text()
    recipe.write_text(text.replace("served-as = [", f'served-as = ["{snapshot_path}", '))
    say(f"build {model.wheel_name} (python -m build --wheel; real vLLM, no GPU, no weights)")
    begun = time.monotonic()
    links = {"PIP_FIND_LINKS": str(own_wheel().parent), "MODEL_CACHE_PYTHON": str(engine)}
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(PLACE / "dist"), str(project)], add=links)
    [wheel] = (PLACE / "dist").glob(f"{model.wheel_name.replace('-', '_').replace('.', '[._]')}-*.whl")
    say(f"  {wheel.name}  {wheel.stat().st_size / 1e6:.1f} MB in {time.monotonic() - begun:.0f} s")
    return wheel


def own_wheel() -> Path:
    """This project's wheel, built once per demo; recipes require it."""
    dist = PLACE / "own"
    if not list(dist.glob("*.whl")):
        run([sys.executable, "-m", "build", "--wheel", "--outdir", str(dist), str(ROOT)])
    [wheel] = dist.glob("*.whl")
    return wheel


def install(serving: Path, wheels: Sequence[Path]) -> None:
    """`pip install` into the serving environment."""
    say(f"pip install into {serving.parent.parent.relative_to(ROOT)}, an environment at another path than the build's")
    links = ["--no-index", "--find-links", str(own_wheel().parent), "--force-reinstall"]
    run([sys.executable, "-m", "pip", "--python", str(serving), "install", "--quiet", *links, *map(str, wheels)])


def deploy(serving: Path, host: Path) -> None:
    """`model-cache deploy`, told the GPU, since none is visible here."""
    say("model-cache deploy --assume-target " + TARGET)
    command = [
        str(serving.with_name("model-cache")),
        "deploy",
        "--assume-target",
        TARGET,
        "--root",
        str(host / "cache"),
    ]
    print(run(command).rstrip())


def snapshot(hub: LoopbackHub, model: Model, host: Path) -> str:
    """Fill the serving host's Hub cache; the path that vLLM swaps for the id when HF_HUB_OFFLINE=1."""
    from huggingface_hub import snapshot_download

    cache = host / "home" / ".cache" / "huggingface" / "hub"
    shutil.copytree(ROOT / "examples" / model.recipe / "model", host / "work" / model.local)
    return str(snapshot_download(model.hub_id, endpoint=hub.endpoint, cache_dir=cache))


def starts(model: Model, serving: Path, host: Path, hub: LoopbackHub) -> list[tuple[str, str, Report]]:
    """A cold start with an empty cache root, then a warm one under every served name."""
    empty = host / "empty-cache"
    shutil.rmtree(empty, ignore_errors=True)
    rows = [("cold", model.hub_id, serve(model, model.hub_id, serving, host, hub, root=empty))]
    for title, name, offline in (
        ("Hub id", model.hub_id, False),
        ("Hub id, HF_HUB_OFFLINE=1", model.hub_id, True),
        ("directory", f"./{model.local}", False),
    ):
        found = serve(model, name, serving, host, hub, root=host / "cache", offline=offline, force=True)
        rows.append((title, name, found))
    return rows


def serve(
    model: Model,
    name: str,
    serving: Path,
    host: Path,
    hub: LoopbackHub,
    *,
    root: Path,
    offline: bool = False,
    force: bool = False,
) -> Report:
    """An unmodified `vllm serve`. With `force`, VLLM_FORCE_AOT_LOAD=1 makes the engine fail rather than compile."""
    say(f"vllm serve {name}{' (offline)' if offline else ''}, {'warm' if force else 'cold'}")
    environment = {
        "PATH": f"{serving.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(host / "home"),
        "VLLM_CACHE_ROOT": str(root),
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "MODEL_CACHE_ASSUME_TARGET": TARGET,  # as for deploy: the plug-in can see no GPU
        "LANG": "C.UTF-8",
        **model.environment,
        **({"HF_HUB_OFFLINE": "1"} if offline else {}),
        **({"VLLM_FORCE_AOT_LOAD": "1"} if force else {"MODEL_CACHE_DISABLE": "1"}),
    }
    command = [str(serving.with_name("vllm")), "serve", name, *model.flags, "--skip-tokenizer-init", "--port", "8765"]
    title = name.replace("/", "_").strip("._")
    log = host / "logs" / f"{title}{'-offline' if offline else ''}-{'warm' if force else 'cold'}.log"
    return rehearse(command, TARGET, environment=environment, cwd=host / "work", log=log)


def report(rows: Sequence[tuple[str, str, Report]]) -> int:
    """The table, and whether every warm start was warm."""
    say("Results. The GPU is pretended: seconds are those of this machine's CPU, up to the first call of the model.")
    print(f"{'start':26} {'model string':36} {'engine s':>8} {'load s':>7} {'Inductor':>8} {'ptxas':>6} {'loaded':>6}")
    for title, name, found in rows:
        numbers = f"{found.seconds:8.1f} {found.load_seconds:7.1f} {found.inductor_compiles:8} {found.ptxas_runs:6}"
        print(f"{title:26} {name:36} {numbers} {found.loaded:6}")
    warm = [found for title, _, found in rows if title != "cold"]
    bad = [found for found in warm if not found.warm]
    for found in bad:
        print(f"not warm: {found}")
    (PLACE / "results.json").write_text(json.dumps([(t, n, vars(r)) for t, n, r in rows], indent=1))
    say(f"{len(warm) - len(bad)} of {len(warm)} warm starts loaded everything and compiled nothing.")
    return 1 if bad or not warm else 0


def run(command: Sequence[str], *, add: Mapping[str, str] | None = None) -> str:
    """Run a command; on failure show what it printed and stop."""
    done = subprocess.run(command, env={**os.environ, **(add or {})}, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"failed: {' '.join(command)}")
    return done.stdout


def say(text: str) -> None:
    """One line of the story, with the time it took so far."""
    print(f"[{time.monotonic() - BEGUN:4.0f} s] {text}", flush=True)


BEGUN = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
