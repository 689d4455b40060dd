"""Build an engine environment from its pinned list, into .engines/<name>; reuse it while the pins are unchanged.

    python engines/prepare.py vllm-0.33.0 [--into DIR] [--print]

The pins, engines/<name>.txt, come from engines/<name>.in:

    uv pip compile --no-header --no-annotate --python-version 3.11 engines/<name>.in -o engines/<name>.txt

vllm 0.33.0's own requirements resolve cuda-python to 12.6, whose files overwrite those of cuda-bindings 13 and break
`import flashinfer`; the .in file therefore asks for cuda-python>=13.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = "pins.sha256"


def prepare(name: str, into: Path) -> Path:
    """Make the environment `into` hold exactly the pins of `name`; return its interpreter."""
    pins = HERE / f"{name}.txt"
    if not pins.is_file():
        known = ", ".join(sorted(p.stem for p in HERE.glob("*.txt")))
        raise SystemExit(f"engines/{name}.txt does not exist; there is {known}")
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    stamp = into / STAMP
    python = into / "bin" / "python"
    if python.exists() and stamp.is_file() and stamp.read_text() == digest:
        return python
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    shutil.rmtree(into, ignore_errors=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    subprocess.run([uv, "venv", "--quiet", "--python", version, str(into)], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(pins)], check=True)
    stamp.write_text(digest)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description="Build an engine environment from its pinned list.")
    parser.add_argument("name", help="stem of a list in engines/, for example vllm-0.33.0")
    parser.add_argument("--into", type=Path, help="directory (default .engines/NAME)")
    arguments = parser.parse_args()
    print(prepare(arguments.name, arguments.into or HERE.parent / ".engines" / arguments.name))


if __name__ == "__main__":
    main()
