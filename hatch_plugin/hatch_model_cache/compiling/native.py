"""A compile on the GPU that is here, in the place of a pretended one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatch_model_cache.compile import engines
from hatch_model_cache.compiling import compiled
from hatch_model_cache.compiling.compiler import CROSS, Way
from hatch_model_cache.compiling.cubins import kernels
from hatch_model_cache.recipe.recipe import Recipe
from hatch_model_cache.targets import Target
from model_cache.errors import UsageError
from model_cache.machine.fit import GPU_FIELDS
from model_cache.machine.host import probe_gpus


def native(recipe: Recipe) -> Way:
    """The way to compile `recipe` on the GPU that is here; for a CPU that is the only way there is.

    Raises UsageError, with every reason, where that GPU is not the recipe's target.
    """
    wanted = [target for target in recipe.load_targets() if isinstance(target, Target)]
    if not wanted:
        return CROSS
    problems = list(_problems(recipe, wanted))
    if problems:
        raise UsageError("It cannot be compiled on a GPU of this machine; without --native none is needed:", problems)
    return Way("compile", "native", compiled.RESULT_KEYS, _finished, ("CUDA_VISIBLE_DEVICES",))


def _problems(recipe: Recipe, wanted: list[Target]) -> Iterator[str]:
    here = probe_gpus()
    for target in wanted:
        if not here.gpus:
            yield f"{target.name} is wanted, and no GPU is visible ({here.reason})"
        elif values := [
            f"{field} is {getattr(here.gpus[0], field)}, not {getattr(target, field)}"
            for field in GPU_FIELDS
            if getattr(here.gpus[0], field) != getattr(target, field)
        ]:
            yield f"{target.name} is wanted, and the first GPU is another: {'; '.join(values)}"
    if len(engines.adapter(recipe.engine_name).expected_ranks(recipe.serve_args)) > 1:
        yield "several ranks would need several GPUs at once: set the parallel sizes in the arguments to 1"
    if recipe.components:
        yield "what the engine compiles beside the model is compiled for a pretended GPU only: leave `components` away"
    if recipe.keeps_evidence:
        yield "what kernels were made from is noted for a pretended GPU only: leave `keep` and `selfcheck` away"
    if recipe.checkpoint is not None:
        yield "there the weights are random, and no header is looked at: leave `checkpoint` away"


def _finished(result: dict[str, Any], _: str, __: Path) -> dict[str, Any]:
    """The result with what only a pretended GPU would have noted, read from the artifacts."""
    files = [path for artifact in result["artifacts"] for path in compiled.kernel_files(artifact)]
    found = [kernel for path in files for kernel in kernels(path)]
    answers = {name: answer for name, answer in result["host_answers"].items() if name != "peer_access"}
    return {**result, "kernels": found, "host_answers": answers}  # one GPU has no peer
