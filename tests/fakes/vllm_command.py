"""A FAKE `vllm` command: serves HTTP as `vllm serve` is asked to, and answers with what it was started with."""

from __future__ import annotations

import json
import os
import shlex
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """`/health`, and an echo of everything else."""

    def do_GET(self) -> None:
        body = json.dumps({"arguments": sys.argv[1:], "note": os.environ.get("NOTE"), "path": self.path}).encode()
        self._answer(b"" if self.path == "/health" else body)

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Quiet."""


def command(directory: Path) -> Path:
    """An executable `vllm` in `directory` that is this file."""
    path = directory / "vllm"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n')
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    at = sys.argv.index("--port")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[at + 1])), Handler).serve_forever()
