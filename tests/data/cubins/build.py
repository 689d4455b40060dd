"""Assembles the cubins beside this file, and records what NVIDIA's own cuobjdump says of each in cuobjdump.json.

    python build.py <directory of ptxas, ptxas-blackwell and cuobjdump>     (triton ships them: backends/nvidia/bin)

The PTX is our own: one small kernel, and one that has more values alive than `.maxnreg` allows, so that it spills.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

# The arch, the assembler and the PTX version. Up to CUDA 12 and from CUDA 13 on the ELF layouts differ, hence both
# assemblers for one arch; Triton takes ptxas below sm_100 and ptxas-blackwell from there on.
WANTED = (
    ("sm_75", "ptxas", "8.0"),
    ("sm_80", "ptxas", "8.0"),
    ("sm_80", "ptxas-blackwell", "8.0"),
    ("sm_89", "ptxas", "8.0"),
    ("sm_90", "ptxas-blackwell", "8.0"),
    ("sm_90a", "ptxas", "8.0"),
    ("sm_90a", "ptxas-blackwell", "8.0"),
    ("sm_100", "ptxas", "8.7"),
    ("sm_100", "ptxas-blackwell", "8.7"),
    ("sm_100a", "ptxas", "8.7"),
    ("sm_100a", "ptxas-blackwell", "8.7"),
    ("sm_120a", "ptxas-blackwell", "8.7"),
)
ALIVE = 28
"""Values that kernel `spill` holds at a time; `.maxnreg 24` leaves room for fewer."""


def ptx(arch: str, version: str) -> str:
    """Two kernels: `add_one` adds 1 to each number of an array, `spill` adds many numbers to each other.

    `room` is larger than the file and lies in a section without bytes in it (SHT_NOBITS).
    """
    loads = "\n".join(f"  ld.volatile.global.u32 %v{i}, [%p+{4 * i}];" for i in range(ALIVE))
    stores = "\n".join(
        f"  add.u32 %t, %v{i}, %v{(i + 1) % ALIVE};\n  st.volatile.global.u32 [%p+{4 * i}], %t;" for i in range(ALIVE)
    )
    return f"""\
.version {version}
.target {arch}
.address_size 64
.global .align 4 .b8 room[65536];
.visible .entry add_one(.param .u64 numbers)
{{
  .reg .b64 %p, %o, %r;
  .reg .b32 %i, %v;
  ld.param.u64 %p, [numbers];
  cvta.to.global.u64 %p, %p;
  mov.u32 %i, %tid.x;
  mul.wide.u32 %o, %i, 4;
  add.u64 %p, %p, %o;
  ld.global.u32 %v, [%p];
  add.u32 %v, %v, 1;
  st.global.u32 [%p], %v;
  mov.u64 %r, room;
  add.u64 %r, %r, %o;
  st.global.u32 [%r], %v;
  ret;
}}
.visible .entry spill(.param .u64 numbers) .maxnreg 24
{{
  .reg .b64 %p;
  .reg .b32 %t, %v<{ALIVE}>;
  ld.param.u64 %p, [numbers];
  cvta.to.global.u64 %p, %p;
{loads}
{stores}
  ret;
}}
"""


def said(cuobjdump: Path, cubin: Path) -> dict[str, object]:
    """What cuobjdump says: the architecture, and registers and stack (bytes) of every kernel."""
    head = subprocess.run([cuobjdump, "-elf", cubin], capture_output=True, text=True, check=True).stdout
    usage = subprocess.run([cuobjdump, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True)
    arch = re.search(r"\bsm=(\w+)", head)
    assert arch, head[:200]
    kernels = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+)", usage.stdout)
    return {
        "architecture": f"sm_{arch[1]}",
        "kernels": {name: {"registers": int(registers), "stack": int(stack)} for name, registers, stack in kernels},
    }


def main() -> None:
    """Build all of `WANTED`."""
    tools = Path(sys.argv[1])
    record = {}
    for arch, assembler, version in WANTED:
        cubin = HERE / f"{arch}-{assembler}.cubin"
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
            source.write(ptx(arch, version))
            source.flush()
            subprocess.run([tools / assembler, "-O3", f"-arch={arch}", source.name, "-o", cubin], check=True)
        record[cubin.name] = {"built_for": arch, **said(tools / "cuobjdump", cubin)}
    versions = {
        tool: subprocess.run([tools / tool, "--version"], capture_output=True, text=True, check=True)
        .stdout.split(", ")[-1]
        .split()[0]
        for tool in ("ptxas", "ptxas-blackwell", "cuobjdump")
    }
    text = json.dumps({"tools": versions, "cubins": record}, indent=1) + "\n"
    (HERE / "cuobjdump.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
