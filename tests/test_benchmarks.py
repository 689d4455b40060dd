"""The benchmarks' own measuring, and that their page is what they have found. The rest of them runs by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from build_factories import TABLE, make_artifacts, make_project

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import run  # noqa: E402
import sizes  # noqa: E402

MIB = 1 << 20


def test_the_page_is_what_was_found() -> None:
    results = json.loads(run.RESULTS.read_text())
    assert results.keys() >= run.BENCHMARKS.keys()
    assert run.PAGE.read_text() == run.markdown(results)


def test_memory_of_a_process_counts_with_that_of_its_parent(tmp_path: Path) -> None:
    hold = "x = b'x' * (40 << 20); import subprocess, sys, time; {}; time.sleep(0.6)"
    child = hold.format("pass")
    command = [
        sys.executable,
        "-c",
        hold.format(f"subprocess.run([sys.executable, '-c', {child!r}])") + "; sys.exit(3)",
    ]
    result = tmp_path / "result.json"
    done = subprocess.run([sys.executable, str(BENCHMARKS / "process_tree.py"), str(result), *command], check=False)
    found = json.loads(result.read_text())
    assert done.returncode == 3
    assert 80 * MIB < found["peak_bytes"] < 140 * MIB
    assert found["seconds"] > 1.2


def test_a_root_holds_what_a_wheel_stores_once(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", TABLE | {"served-as": ["org/One", "./one"]})
    artifacts = make_artifacts(tmp_path / "artifacts", project)
    wheel = tmp_path / "one.whl"
    wheel.write_bytes(b"x" * 99)
    found = sizes.of_wheel(wheel, artifacts)
    assert found["wheel_bytes"] == 99
    assert found["root_bytes"] == 2 * found["distinct_bytes"] > 0
    assert 0 < found["tar_bytes"] < found["root_bytes"]  # gzip sees two equal files as long as they are small
