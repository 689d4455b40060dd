"""The known versions of vLLM, and what an older one has under another name or not at all. Only this module knows them
apart.

Each function answers as the newest version does. What stands in for it elsewhere names the version, and goes with it.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
from typing import Any

VERSIONS = frozenset({"0.31.0", "0.32.0", "0.33.0"})
"""Of the distribution `vllm`: those that tests/engine/test_conformance.py has passed with."""

PIECEWISE = frozenset({"0.33.0"})
"""Those whose piecewise path is built for. The two before it keep absolute paths of the cache root in its index."""

WARM_UP = frozenset({"0.33.0"})
"""Those whose own Triton kernels are compiled ahead (`vllm_warmup`)."""

_COMMAND_LINES = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args")
"""Where make_arg_parser is: in 0.33.0; in 0.32.0 and 0.31.0."""


def command_line() -> Any:
    """The module that defines the arguments of ``vllm serve`` (make_arg_parser)."""
    for name in _COMMAND_LINES:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise ModuleNotFoundError(f"vllm's arguments are in none of {', '.join(_COMMAND_LINES)}")


def local_gpu_index(parallel: Any, rank: int) -> int:
    """The number of the GPU that a rank of this node uses, with no launcher in between that hides others.

    0.32.0 and 0.31.0 have no function for it; they compute the same in ``Worker.init_device``.
    """
    if hasattr(parallel, "get_local_gpu_index"):
        return int(parallel.get_local_gpu_index(rank))
    launched = parallel.distributed_executor_backend in ("ray", "external_launcher")
    if launched or parallel.data_parallel_backend == "ray" or parallel.nnodes_within_dp != 1:
        return rank
    replica = parallel.data_parallel_rank_local
    return rank + int(parallel.world_size * (parallel.data_parallel_index if replica is None else replica))


def has_flashinfer_compiler() -> bool:
    """Whether vLLM finds the nvcc that FlashInfer would compile with. 0.31.0 looks on PATH only."""
    import vllm.utils.flashinfer as flashinfer

    find = getattr(flashinfer, "_flashinfer_nvcc_path", lambda: shutil.which("nvcc"))
    return find() is not None
