"""ptxas once more: does the PTX that was checked give the cubin that is shipped?"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


class OtherAssemblerError(Exception):
    """This environment has not the assembler that the cubin was made with."""


def assemble(ptx: str, flags: Sequence[str], version: str) -> bytes:
    """The cubin that Triton's ptxas makes of a PTX text.

    Args:
        ptx: the text.
        flags: as Triton gave them.
        version: of the ptxas that they were given to, for example ``"12.9"``.

    Raises:
        OtherAssemblerError: if there is no such version here.
        ValueError: if ptxas refuses the text.
    """
    from triton import knobs

    tools = {tool.version: tool.path for tool in (knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell)}
    if version not in tools:
        raise OtherAssemblerError(f"made with ptxas {version}, here is {' and '.join(sorted(tools))}")
    with tempfile.TemporaryDirectory() as directory:
        source, result = Path(directory, "kernel.ptx"), Path(directory, "kernel.cubin")
        source.write_text(ptx)
        done = subprocess.run(
            [tools[version], *flags, str(source), "-o", str(result)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ValueError(
                f"ptxas: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}"
            )
        return result.read_bytes()
