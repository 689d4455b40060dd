"""`model-cache status --watch`: what is drawn, and what a pipe gets."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from factories import make_host, make_site, run
from model_cache.engine import lookups
from model_cache.engine.lookups import LookUp
from model_cache.store.root import Root

COMMAND = [sys.executable, "-m", "model_cache", "status", "--watch"]
MISS = LookUp(1.0, 1, "backbone", "0_0", "cd" * 32, False, 0, 0.1, "", reason="no installed wheel is for this model")


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def test_a_pipe_gets_each_change_as_a_line_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    root, out = tmp_path / "root", tmp_path / "out"
    with out.open("wb") as file:
        watching = subprocess.Popen([*COMMAND, "--root", str(root)], stdout=file)
    try:
        until(lambda: "there is no such cache root" in out.read_text())
        run(make_site(tmp_path), root, make_host())
        until(lambda: "intact, not used" in out.read_text())
        with Root.open(str(root)) as opened:
            lookups.append(opened, MISS)
        until(lambda: "no installed wheel is for this model" in out.read_text())
    finally:
        watching.send_signal(signal.SIGINT)
        code = watching.wait(10)
    assert code == 0
    lines = out.read_text().splitlines()
    assert len(lines) == len(set(lines)), "nothing is said twice"
    assert "\x1b" not in out.read_text()


def test_a_terminal_is_drawn_anew(tmp_path: Path) -> None:
    run(make_site(tmp_path), tmp_path / "root", make_host())
    ours, theirs = pty.openpty()
    watching = subprocess.Popen([*COMMAND, "--root", str(tmp_path / "root")], stdout=theirs)
    seen = b""
    try:
        while b"not used" not in seen:
            seen += os.read(ours, 4096)
        assert seen.startswith(b"\x1b[H\x1b[J")
        with Root.open(str(tmp_path / "root")) as opened:
            lookups.append(opened, MISS)
        while b"this model" not in seen:
            seen += os.read(ours, 4096)
    finally:
        watching.send_signal(signal.SIGINT)
        watching.wait(10)
        os.close(ours)
        os.close(theirs)
    assert seen.count(b"not used") == 2


def test_only_text_is_watched(tmp_path: Path) -> None:
    for option in (["--json"], ["--format", "prometheus"]):
        done = subprocess.run([*COMMAND, *option], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "--watch shows text" in done.stdout + done.stderr
