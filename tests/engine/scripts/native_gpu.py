"""A compile in the surroundings of a real GPU, by vLLM for CPUs, since there is none. Run by the engine's interpreter.

    python native_gpu.py DIRECTORY

DIRECTORY/job.json: as `compile.worker.run` takes it; the answer is DIRECTORY/result.json.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

gc.disable()


def main(directory: Path) -> None:
    """Do the job."""
    from cpu_lines import Quiet

    from hatch_model_cache.compile import worker
    from hatch_model_cache.compile.native.gpu import native_gpu

    with native_gpu() as surroundings:
        result = worker.perform(json.loads((directory / "job.json").read_text()), surroundings, Quiet())
    (directory / "result.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
