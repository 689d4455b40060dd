"""Parent side of `fork_server`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any


@dataclass
class Server:
    """A running fork server: its directory, and its pipes."""

    directory: Path
    requests: IO[str]
    answers: IO[str]
    count: int = 0

    def ask(self, arguments: list[str], environment: Mapping[str, str | None], cwd: Path) -> dict[str, Any]:
        """What the engine answers to one configuration; ``error`` in it if it failed."""
        self.count += 1
        request = {"id": self.count, "arguments": arguments, "environment": dict(environment), "cwd": str(cwd)}
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        if self.answers.readline().strip() != str(self.count):
            raise SystemExit(f"the fork server has ended; its log: {self.directory / 'log'}")
        path = self.directory / f"{self.count}.json"
        if not path.is_file():
            return {"error": "no answer in time"}
        answer: dict[str, Any] = json.loads(path.read_text())
        return answer


@contextmanager
def serving(python: Path, target: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> Iterator[Server]:
    """A fork server for one GPU and one environment; `log` gets what the engine prints."""
    with tempfile.TemporaryDirectory(prefix="model-cache-matrix-") as name:
        directory = Path(name)
        (directory / "target.json").write_text(json.dumps(dict(target)))
        command = [str(python), "-s", "-P", str(Path(__file__).with_name("fork_server.py")), str(directory)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=dict(environment),
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise SystemExit(f"the fork server did not start; its log: {log}")
            yield Server(directory, process.stdin, process.stdout)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
