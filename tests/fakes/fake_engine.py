"""A FAKE engine interpreter: does what compile/bootstrap.py and its worker do in a compile process, without torch.

It proves nothing about the engine, only about the process that starts it. Its artifacts are a few made-up bytes around
a real cubin. `interpreter` makes an executable of it, to be named in MODEL_CACHE_PYTHON. The variable FAKE_ENGINE in
the recipe's environment says how it behaves (a method of `Fake`), FAKE_REPORT a file that gets what it saw.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pickle
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CUBINS = Path(__file__).resolve().parents[1] / "data" / "cubins"
ARCHS = {"h100-sxm5-80gb": "sm_90a", "h200": "sm_90a", "a100-sxm4-80gb": "sm_80"}
ENGINE = {
    "name": "vllm",
    "version": "0.33.0",
    "torch": "2.14.0+cu130",
    "triton": "3.8.0",
    "cuda": "13.0",
    "python": platform.python_version(),
    "platform": "linux_x86_64",
}
KERNEL = "add_one"
CACHE = "torch_compile_cache/torch_aot_compile"


def interpreter(directory: Path) -> Path:
    """An executable that is this Python, except when it is told to run a script, or asked for the version of vllm: then
    it is the fake."""
    path = directory / "fake-python"
    python, fake = shlex.quote(sys.executable), shlex.quote(__file__)
    path.write_text(
        f'#!/bin/sh\ncase "$4" in vllm) echo "vllm {ENGINE["version"]}"; exit;; esac\n'
        f'[ "$1" = -I ] && exec {python} "$@"\nexec {python} -S {fake} "$@"\n'
    )
    path.chmod(0o755)
    return path


def key_of(target: str, prefix: str, name: str) -> str:
    """A made-up cache key."""
    return hashlib.sha256(f"{target} {prefix} {name}".encode()).hexdigest()


def artifact(target: str, note: str = "", python: str = ENGINE["python"]) -> bytes:
    """A made-up artifact, a pickle as the engine's is, with one real kernel for `target`."""
    kernel = (CUBINS / f"{ARCHS[target]}-ptxas.cubin").read_bytes()
    return pickle.dumps([b"made-up artifact " + note.encode(), kernel, {"python_version": python}])


def describe(job: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """As `leave`, of a process that compiles nothing."""
    unasked = ("saved", "parts", "kernels", "regions", "stand_ins", "ptxas_runs", "launches_skipped")
    with tempfile.TemporaryDirectory(dir=cache.parent) as elsewhere:
        found = leave(job, Path(elsewhere))
        place = str(elsewhere)
    for artifact in found["artifacts"]:
        artifact["path"] = artifact["path"].replace(place, str(cache))
    return {key: value for key, value in found.items() if key not in unasked}


def leave(job: Mapping[str, Any], cache: Path, prefixes: tuple[str, ...] = ("backbone",)) -> dict[str, Any]:
    """Leave artifacts under `cache` for a job as compiler.py describes one, and return the result of the process."""
    target, rank = job["target"]["name"], job["rank"]
    kernel = (CUBINS / f"{ARCHS[target]}-ptxas.cubin").read_bytes()
    artifacts = []
    for prefix in prefixes:
        path = cache / CACHE / key_of(target, prefix, "as built") / f"rank_{rank}_0" / "model"
        path.parent.mkdir(parents=True)
        path.write_bytes(artifact(target, f"{prefix} of rank {rank}"))
        artifacts.append(
            {
                "prefix": prefix,
                "path": str(path),
                "component": "vllm-aot",
                "kind": "vllm-aot-model",
                "contains": ["bytecode", "cubin", "pickle"],
                "beside": [],
                "keys": [
                    {
                        "served_as": name,
                        "key": key_of(target, prefix, name),
                        "directory": f"{CACHE}/{key_of(target, prefix, name)}",
                        "overrides": {"model.model": name},
                    }
                    for name in job["served_as"]
                ],
            }
        )
    arguments = list(job["serve_arguments"])
    size = arguments[arguments.index("--tensor-parallel-size") + 1] if "--tensor-parallel-size" in arguments else 1
    return {
        "engine": ENGINE,
        "ranks": int(size),
        "architectures": ["LlamaForCausalLM"],
        "host_answers": {"nvcc": None, "ninja": False},
        "unkeyed": {"speculative.num_speculative_tokens": None},
        "factors": {"model.dtype": "torch.bfloat16", "inductor.system.device.name": target},
        "models": len(prefixes),
        "saved": len(prefixes),
        "parts": 2 * len(prefixes),
        "hints": {"modelinfos/fake-Model.json": '{"hash": "0"}'},
        "artifacts": artifacts,
        "kernels": [
            {
                "name": KERNEL,
                "sha256": hashlib.sha256(kernel).hexdigest(),
                "arch": ARCHS[target],
                "registers": 12,
                "spills": 0,
                "shared": 0,
                "lineage": None,
            }
        ],
        "regions": [],
        "ptxas_runs": 1,
        "stand_ins": [{"site": "vllm/made_up.py:1", "answer": "1", "count": 2}],
        "launches_skipped": {},
        "measured": {"seconds": 0.1, "peak_rss_bytes": 1},
    }


class Fake:
    """One compile process."""

    def __init__(self, job: Path, descriptor: int) -> None:
        self.directory = job.parent
        self.job = json.loads(job.read_text())
        self.pipe = os.fdopen(descriptor, "w", buffering=1)
        self.cache = Path(os.environ["VLLM_CACHE_ROOT"])

    def tell(self, **event: object) -> None:
        self.pipe.write(json.dumps(event) + "\n")

    def end(self, result: Mapping[str, Any]) -> None:
        (self.directory / "result.json").write_text(json.dumps(result))
        sys.stdout.flush()
        os._exit(1 if "error" in result else 0)

    def report(self, **more: object) -> None:
        """Write what this process sees to the file that FAKE_REPORT names."""
        if "FAKE_REPORT" in os.environ:
            model = Path(self.job["serve_arguments"][0])
            seen = {
                "environment": dict(os.environ),
                "arguments": sys.argv[1:],
                "job": self.job,
                "cwd": str(Path.cwd()),
                "work": sorted(str(p) for p in Path().rglob("*") if p.is_file()),
                "model": sorted(str(p.relative_to(model)) for p in model.rglob("*")),
                "scratch": sorted(p.name for p in self.directory.parent.iterdir()),
                "stdin": sys.stdin.read(),
                "group": os.getpgid(0) == os.getpid(),
                **more,
            }
            temporary = Path(f"{os.environ['FAKE_REPORT']}.{os.getpid()}")
            temporary.write_text(json.dumps(seen))
            temporary.rename(os.environ["FAKE_REPORT"])

    def success(self) -> None:
        self.report()
        print("a line of the engine's log")
        self.tell(stage="trace backbone")
        self.tell(kernel=KERNEL)
        self.end((describe if self.job["task"] == "describe" else leave)(self.job, self.cache))

    def killed(self) -> None:
        print("about to be killed", flush=True)
        self.pipe.write('{"stage": "cut o')
        os.kill(os.getpid(), signal.SIGSEGV)

    def error(self) -> None:
        print("Traceback: a long story", flush=True)
        self.end({"error": "ValueError: the model's\n   head size is odd."})

    def misfit(self) -> None:
        problems = ["a.weight is BF16 [64, 32]", "nothing fills b.weight"]
        self.end({"error": "the checkpoint does not fit the model", "problems": problems})

    def quit(self) -> None:
        print("no result", flush=True)
        sys.exit(3)

    def grandchild(self) -> None:
        """Leave a process behind that holds the pipe open and would live for minutes."""
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(300)"], pass_fds=[self.pipe.fileno()]
        )
        self.report(child=child.pid)
        self.end(leave(self.job, self.cache))

    def hang(self) -> None:
        self.report(child=os.getpid())
        self.tell(stage="trace backbone")
        time.sleep(300)

    def leftover(self) -> None:
        print("saved, nearly", flush=True)
        result = leave(self.job, self.cache)
        Path(result["artifacts"][0]["path"]).with_name("model.tmp").write_bytes(b"half")
        self.end(result)

    def nonsense(self) -> None:
        """Leave a result that is no JSON."""
        print("out of space", flush=True)
        (self.directory / "result.json").write_text('{"ranks": 1, "art')

    def half(self) -> None:
        """Leave a result that lacks most of what it must hold."""
        print("of another release", flush=True)
        self.end({"ranks": 1})

    def alone(self) -> None:
        """Note how urgent this process is; fail if another one is running."""
        place = Path(os.environ["FAKE_MEET"])
        (place / "running").touch(exist_ok=False)
        until = time.monotonic() + 5
        while os.getpriority(os.PRIO_PROCESS, 0) < 19 and time.monotonic() < until:  # our parent is about to say it
            time.sleep(0.01)
        (place / f"rank{self.job['rank']}").write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
        time.sleep(0.1)
        (place / "running").unlink()
        self.success()

    def meet(self) -> None:
        """Go on only when two of these are running."""
        place = Path(os.environ["FAKE_MEET"])
        (place / str(os.getpid())).write_text(str(self.directory.parent))
        until = time.monotonic() + 20
        while len(list(place.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        self.success()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent, as bootstrap does
    fake = Fake(Path(sys.argv[4]), int(sys.argv[5]))
    getattr(fake, os.environ.get("FAKE_ENGINE", "success"))()
