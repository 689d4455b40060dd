"""What the vLLM plug-in costs a process when there is nothing to do. Prints one JSON object.

    python benchmarks/plugin_noop.py [--runs 21] [--wheels 1]

Each run is a fresh interpreter that has importlib.metadata loaded already, as every vLLM process has before it
looks for plug-ins, and times `import model_cache.plugin` plus `register()`. Wheels, engine and GPU are synthetic
(the target is assumed), so this needs no GPU and no engine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import spread

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "hatch_plugin")]

from factories import H100, install, make_engine, make_wheel  # noqa: E402

CODE = """
import importlib.metadata, sys, time
start, busy = time.perf_counter(), time.process_time()
from model_cache import plugin
plugin.register()
print((time.perf_counter() - start) * 1000, (time.process_time() - busy) * 1000)
print("model_cache.engine.startup" in sys.modules)
"""


def run(environment: dict[str, str]) -> tuple[float, float, bool]:
    """(milliseconds, those of the processor, whether the plug-in had to look closer) of one fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    milliseconds, busy, closer = done.stdout.split()
    return float(milliseconds), float(busy), closer == "True"


def measure(runs: int, wheels: int, files: int) -> dict[str, object]:
    """Medians over `runs` interpreters: nothing installed, the first start, and the starts after it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        engine = make_engine(place / "engine")
        python = ".".join(map(str, sys.version_info[:3]))
        for number in range(wheels):
            contents = {
                f"torch_compile_cache/torch_aot_compile/{number:032x}{entry:032x}": {"rank_0_0/model": os.urandom(1000)}
                for entry in range(files)
            }
            name = f"model-cache-synthetic-{number}-h100-sxm5-80gb"
            wheel = make_wheel(place / "dist", contents, name=name, changes={"engine.python": python})
            install(wheel, place / "site")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "hatch_plugin"), str(engine)]),
            "VLLM_CACHE_ROOT": str(place / "root"),
            "MODEL_CACHE_ASSUME_TARGET": str(H100["name"]),
        }
        empty = [run(environment)[0] for _ in range(runs)]
        environment["PYTHONPATH"] += f"{os.pathsep}{place / 'site'}"
        first, _, closer = run(environment)
        assert closer
        after = [run(environment) for _ in range(runs)]
        assert not any(closer for _, _, closer in after), "the plug-in has looked closer although nothing had changed"
    return {
        "runs": runs,
        "wheels": wheels,
        "files_per_wheel": files,
        "no_wheel_ms": spread.of(empty),
        "first_start_ms": round(first, 2),
        "nothing_to_do_ms": spread.of([milliseconds for milliseconds, _, _ in after]),
        "nothing_to_do_processor_ms": round(statistics.median(busy for _, busy, _ in after), 2),
    }


def table(found: dict[str, Any]) -> list[str]:
    """The section of the page."""
    return [
        "## The plug-in, per engine process",
        "",
        "Milliseconds on top of an interpreter that has importlib.metadata loaded, as vLLM's processes have.",
        "",
        f"| median of {found['runs']} (spread) | ms |",
        "|---|---|",
        f"| no wheel installed | {spread.text(found['no_wheel_ms'])} |",
        f"| a wheel installed and deployed: nothing to do | {spread.text(found['nothing_to_do_ms'])} |",
        f"| the first start, which deploys, once | {found['first_start_ms']:.1f} |",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--wheels", type=int, default=1)
    parser.add_argument("--files", type=int, default=4)
    options = parser.parse_args()
    print(json.dumps(measure(options.runs, options.wheels, options.files), indent=1))


if __name__ == "__main__":
    main()
