"""Compiles in forks of a process that has imported the engine: one import for all cells of a column, and all ranks of
a cell. Run in the engine's interpreter:

    python -s -P fork_server.py <directory>

``<directory>/target.json`` is the record of the GPU to pretend. When ``<directory>/socket`` is there it listens: what
connects (`forked.CLIENT`) sends its standard output, standard error and the descriptor of its events, then arguments,
environment and directory as JSON. A forked child goes on with them as the compile process does after its import
(`worker.main`); it holds the connection until it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from preimported import imported


def main(directory: Path) -> None:
    with imported(directory) as pretence, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "being-made"))
        server.listen()
        (directory / "being-made").rename(directory / "socket")
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _compile(connection, pretence)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _compile(connection: socket.socket, pretence: Any) -> None:
    _, (out, error, events), _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("r", encoding="utf-8") as request:
        arguments, environment, directory = json.load(request)
    os.dup2(out, 1)
    os.dup2(error, 2)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # is asked for again
    from hatch_model_cache.compile import bootstrap, worker

    bootstrap._end_with_parent()
    worker.surround = lambda *_, **__: contextlib.nullcontext(pretence)
    worker.main(Path(arguments[0]), events)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    main(Path(sys.argv[1]))
