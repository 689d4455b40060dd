"""The engine's own Triton kernels (`components = ["triton"]`): compiled ahead without a GPU, found by a start with another
HOME, cache root and path of the environment, which then runs ptxas not once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine.hosts import ROOT, SERVE_ARGS, Built, compile_recipe, pack, write_recipe
from factories import install, make_engine
from model_cache.commands import deploy as command
from model_cache.store import groups

pytestmark = pytest.mark.engine

MODELS = ROOT / "tests" / "data" / "models"
TARGET = "h100-sxm5-80gb"
MODEL = "./llama-tiny"
OF_EVERY_START = {"_compute_slot_mappings_kernel", "_gather_block_tables_kernel", "_prepare_pos_seq_lens_kernel"}
OF_SAMPLING = {"_apply_grammar_bitmask_kernel", "_min_p_kernel", "_penalties_kernel", "_topk_log_softmax_kernel"}


@pytest.fixture(scope="module")
def built(engine_python: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tiny Llama with the engine's own kernels."""
    place = tmp_path_factory.mktemp("warmup")
    project = write_recipe(
        place / "recipe", MODELS / "llama-tiny", "example/llama-tiny", [MODEL], [TARGET], components=["triton"]
    )
    done = compile_recipe(project, place / "artifacts", engine_python)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(project, place / "artifacts", pack(project, place / "artifacts"), "example/llama-tiny", MODEL)
