"""`make torture` and `make fuzz` in a short form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_torture_in_short() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "torture/run.py"), "--short"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, nothing torn" in done.stdout
    assert "8  kills" in done.stdout


def test_fuzz_in_short() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz/run.py"), "--inputs", "500"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "500 inputs" in done.stdout
    assert "planted pickle fired: never; forbidden: nothing" in done.stdout


def test_the_fuzzer_sees_what_it_must_not_see(tmp_path: Path) -> None:
    """A reader that unpickles, imports or writes elsewhere is found out."""
    code = (
        "import sys, pickle; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import run;"
        "folder = Path(sys.argv[2]); (folder / 'sandbox').mkdir(); fuzzer = run.Fuzzer(folder / 'sandbox', 1);"
        "bad = pickle.dumps(run.Touch(fuzzer.marker));"
        "fuzzer.run(lambda: bad, pickle.loads, 1);"
        "fuzzer.run(lambda: b'', lambda data: (folder / 'outside').write_bytes(data), 1);"
        "print(fuzzer.marker.exists(), *(seen.split()[0] for seen in fuzzer.watch.seen))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(HERE / "fuzz"), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "pickle.find_class", "open"]
