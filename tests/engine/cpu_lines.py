"""Serve lines for a real CPU engine on a host of `cpu_hosts`: asked what it looks for, or really started."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.cpu_hosts import ALWAYS, SERVE_ARGS, CpuHost

SCRIPT = Path(__file__).parent / "scripts" / "cpu_lines.py"
SECONDS = 1200


@dataclass(frozen=True)
class Line:
    """What follows `vllm serve`, and variables. name: of its files."""

    name: str
    model: str
    arguments: Sequence[str] = SERVE_ARGS
    environment: Mapping[str, str] = field(default_factory=dict)


def environment(host: CpuHost, root: Path) -> dict[str, str]:
    """The environment of an engine on `host` with cache root `root`, with what it sets for its own workers."""
    for name in ("home", "tmp"):
        (host.place / name).mkdir(exist_ok=True)
    return {
        "PATH": f"{host.python.parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(host.place / "home"),
        "TMPDIR": str(host.place / "tmp"),
        "LANG": "C.UTF-8",
        "VLLM_CACHE_ROOT": str(root),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def ask(
    host: CpuHost,
    what: str,
    lines: Sequence[Line],
    root: Path,
    *,
    variables: Mapping[str, str] | None = None,
    record: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """The answers to all lines, in order; ``error`` in those that failed, ``log`` in all.

    Args:
        what: "look-up" or "start".
        root: VLLM_CACHE_ROOT.
        variables: that count when the engine is imported.
        record: for look-ups, the CPU as a target.
    """
    directory = host.place / f"{what}-{len(list(host.place.glob(f'{what}-*')))}"
    directory.mkdir()
    requests = [
        {
            "id": line.name,
            "arguments": [line.model, *line.arguments, *ALWAYS],
            "environment": dict(line.environment),
            "cwd": str(host.work),
        }
        for line in lines
    ]
    (directory / "requests.json").write_text(json.dumps(requests))
    (directory / "target.json").write_text(json.dumps(dict(record or {})))
    whole = environment(host, root) | (dict(variables or {}))
    command = [str(host.python), str(SCRIPT), what, str(directory)]
    done = subprocess.run(
        command, env=whole, cwd=host.work, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    answers = []
    for line in lines:
        path = directory / f"{line.name}.json"
        answer = json.loads(path.read_text()) if path.is_file() else {"error": "no answer in time"}
        answers.append(answer | {"log": (directory / f"{line.name}.log").read_text(errors="replace")})
    return answers
