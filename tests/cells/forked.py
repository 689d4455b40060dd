"""Parent side of `fork_server`: an interpreter of the engine that need not import it again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatch_model_cache import targets
from hatch_model_cache.compiling import interpreter

SERVER = Path(__file__).with_name("fork_server.py")

CLIENT = """
import json, os, socket, sys
place, engine, *arguments = sys.argv[1:]
if arguments[:2] != ["-s", "-P"]:
    os.execv(engine, [engine, *arguments])
job, events = arguments[-2:]
with socket.socket(socket.AF_UNIX) as server:
    server.connect(place)
    socket.send_fds(server, [b"."], [1, 2, int(events)])
    server.sendall(json.dumps([[job], dict(os.environ), os.getcwd()]).encode())
    server.shutdown(socket.SHUT_WR)
    os.close(int(events))
    server.recv(1)  # nothing comes; the child has ended
"""
"""Takes the arguments of an interpreter: a compile process is forked, all else is done by the engine's own."""


@contextmanager
def engine(python: str, target: str) -> Iterator[str]:
    """What to name as the interpreter of an engine, for compiles for one target; `python` is the real one."""
    with tempfile.TemporaryDirectory(prefix="model-cache-forked-") as name:
        place = Path(name)
        for directory in ("home", "tmp"):
            (place / directory).mkdir()
        (place / "target.json").write_text(json.dumps(targets.load(target).as_dict()), "utf-8")
        (place / "client.py").write_text(CLIENT, "utf-8")
        stand_in = place / "python"
        client = shlex.join([sys.executable, "-I", "-S", str(place / "client.py"), str(place / "socket"), python])
        stand_in.write_text(f'#!/bin/sh\nexec {client} "$@"\n', "utf-8")
        stand_in.chmod(0o755)
        environment = interpreter.scrubbed_environment({}, {"VLLM_CACHE_ROOT": str(place / "cache")}, place)
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-s", "-P", str(SERVER), str(place)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=place,
                env=environment,
                start_new_session=True,
            )
        try:
            while not (place / "socket").exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the fork server has ended: {(place / 'log').read_text()[-2000:]}")
                time.sleep(0.05)
            yield str(stand_in)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
