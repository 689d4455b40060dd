"""A Ray cluster as a place to build cells on: one task for each, with as many cores and as much memory as it needs.

Every node has hatch-model-cache and the engine installed, like a build machine. A task gets the files of a recipe
project and gives back the bytes of a wheel.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatch_model_cache.compiling import interpreter
from hatch_model_cache.compiling.compiler import BYTES_PER_PROCESS
from hatch_model_cache.packing.signing import KEY_VARIABLE
from hatch_model_cache.scaffold import scaffold
from model_cache.errors import CompileError, ModelCacheError, UsageError

from .cell_process import DIST, PROJECT
from .cells import Cell
from .machine import Tell, run_process, weight

ADDRESS = "RAY_ADDRESS"
_SECONDS = 10
"""Until a cluster must have answered."""
_PASSED_ON = (interpreter.VARIABLE,)
"""What of this process's environment a task gets: where the engine is, on all nodes alike."""


class RayCluster:
    """See `machine.Place`. Ray decides what runs when, and where."""

    def __init__(self, jobs: int | None = None) -> None:
        """Connect to the cluster. jobs: compile processes at a time; by default one for each of its cores.

        Raises UsageError if Ray is not installed or no cluster is there.
        """
        try:
            import ray
        except ImportError:
            raise UsageError("--on ray needs Ray: pip install 'hatch-model-cache[ray]'") from None
        if os.environ.get(KEY_VARIABLE):
            raise UsageError(
                f"{KEY_VARIABLE} is set, and a private key does not travel to a cluster: "
                "build without it, and sign the wheels here (`model-cache sign`)."
            )
        address = os.environ.get(ADDRESS, "auto")
        _require_answer(address)
        try:
            ray.init(
                address=address,
                ignore_reinit_error=True,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"no Ray cluster ({reason}): start one, or set {ADDRESS}") from None
        self._ray = ray
        self.capacity = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.remote(max_retries=1)(_on_node)  # another try if a node is lost, not if a build fails
        self._running: set[Any] = set()
        self._lock = threading.Lock()

    def run(self, cell: Cell, directory: Path, tell: Tell) -> Path:
        """See `machine.Place`."""
        project = directory / PROJECT
        files = {
            path.relative_to(project).as_posix(): path.read_bytes() for path in project.rglob("*") if path.is_file()
        }
        needs = min(weight(cell), self.capacity)
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        task = self._task.options(num_cpus=needs, memory=needs * BYTES_PER_PROCESS, name=cell.identifier)
        tell({"stage": "on the cluster"})
        reference = task.remote(files, environment)
        with self._lock:
            self._running.add(reference)
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise ModelCacheError(f"Ray: {str(error).splitlines()[0]:.300}") from None
        finally:
            with self._lock:
                self._running.discard(reference)
        return _kept(answer, directory / DIST)

    def stop(self) -> None:
        """See `machine.Place`."""
        with self._lock:
            for reference in self._running:
                self._ray.cancel(reference)


def _require_answer(address: str) -> None:
    """Raise UsageError if nobody listens where the address says: Ray itself would try for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", or the name of a cluster
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster answers at {ADDRESS}={address}: {error}") from None


def _kept(answer: Mapping[str, Any], place: Path) -> Path:
    """The wheel of a task's answer, written into `place`."""
    if "error" in answer:
        raise CompileError(f"on {answer['node']}: {answer['error']}", answer["problems"])
    name = str(answer["wheel"])
    if Path(name).name != name:
        raise ModelCacheError(f"the node {answer['node']} gave a wheel a name that is a path")
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(answer["data"])
    return place / name


def _on_node(files: Mapping[str, bytes], environment: Mapping[str, str]) -> dict[str, Any]:
    """The task: build a project on the node this runs on."""
    node = socket.gethostname()
    with tempfile.TemporaryDirectory(prefix="model-cache-ray-") as scratch:
        directory = Path(scratch)
        try:
            scaffold.write(files, directory / PROJECT)
            wheel = run_process(directory, lambda _: None, lambda _: None, _end, environment)
        except ModelCacheError as error:
            return {"node": node, "error": error.message, "problems": error.problems}
        return {"node": node, "wheel": wheel.name, "data": wheel.read_bytes()}


def _end(process: subprocess.Popen[str]) -> None:
    """When Ray cancels a task, what it started ends with it."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait()
