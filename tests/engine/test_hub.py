"""The fake Hub is good enough for the real vLLM: by repository id, and offline afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fakes.loopback_hub import LoopbackHub

pytestmark = pytest.mark.engine

MODEL = "test-org/llama-tiny"

CREATE_CONFIG = f"""
from vllm.transformers_utils.config import get_config
config = get_config("{MODEL}", trust_remote_code=False)
print(config.model_type, config.hidden_size)
"""

NAME_IN_THE_KEY = f"""
from vllm.engine.arg_utils import AsyncEngineArgs
print(AsyncEngineArgs(model="{MODEL}").model)
"""


def run(python: str, code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [python, "-s", "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_vllm_takes_a_configuration_from_the_fake_hub(engine_python: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    written = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 96,
        "num_attention_heads": 4,
    }
    (directory / "config.json").write_text(json.dumps(written))
    home = tmp_path / "home"
    home.mkdir()
    plain = {"PATH": os.environ["PATH"], "HOME": str(home)}
    with LoopbackHub({MODEL: directory}) as hub:
        assert run(engine_python, CREATE_CONFIG, {**plain, **hub.environment()}) == "llama 96"
        assert hub.served(MODEL) == ["config.json"]
    # The hub is gone now. The snapshot path is what vLLM puts into its key when it is offline.
    offline = run(engine_python, NAME_IN_THE_KEY, {**plain, "HF_HUB_OFFLINE": "1"})
    hub_cache = home / ".cache" / "huggingface" / "hub"
    assert offline == str(hub_cache / "models--test-org--llama-tiny" / "snapshots" / hub.sha(MODEL))
