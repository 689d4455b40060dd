"""A CPU wheel, served with other weights of the same model: the real engine, real weights, real tokens."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import shown
from engine.cpu_hosts import MODEL, CpuHost, here, make_host, write_weights
from engine.cpu_lines import Line, ask, environment
from model_cache.engine.lookups import CACHE

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests/data/models/llama-tiny"
OTHER = "./fine-tune"
MUST_LOAD = {"VLLM_FORCE_AOT_LOAD": "1"}
"""The engine's own switch: it ends where it would compile."""


@pytest.fixture(scope="module")
def host(cpu_engine_python: str, cpu_wheel: Path, own_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> CpuHost:
    """A host with the wheel, the model under the wheel's name, and other weights of it under another one."""
    host = make_host(cpu_engine_python, tmp_path_factory.mktemp("adopting"), own_wheel, cpu_wheel)
    for model, seed in ((MODEL, 7), (OTHER, 8)):
        write_weights(cpu_engine_python, CONFIG, host.work / model, seed)
    return host


def test_other_weights_are_adopted_and_answer_as_a_cold_start_does(host: CpuHost) -> None:
    cold_root, root = host.place / "cold", host.place / "warm"
    [cold] = ask(host, "start", [Line("cold", OTHER)], cold_root, variables={"MODEL_CACHE_DISABLE": "1"})
    assert "tokens" in cold, cold["log"][-3000:]
    root.mkdir()
    shutil.copytree(cold_root / "modelinfos", root / "modelinfos")

    first, again, own = ask(
        host,
        "start",
        [
            Line("adopted", OTHER, environment=MUST_LOAD),
            Line("again", OTHER, environment={**MUST_LOAD, "MODEL_CACHE_ADOPT": "0"}),
            Line("own", MODEL, environment=MUST_LOAD),
        ],
        root,
    )
    assert first.get("tokens") == cold["tokens"], first["log"][-3000:]
    assert again.get("tokens") == cold["tokens"], again["log"][-3000:]
    assert own.get("tokens"), own["log"][-3000:]
    assert own["tokens"] != cold["tokens"], "the weights are others"
    assert len({token for tokens in cold["tokens"] for token in tokens}) > 8, "the weights mean something"
    said = {plain(line.partition("model-cache: ")[2]) for one in (first, own) for line in one["log"].splitlines()}
    expected = {plain(line) for line in shown.logged("hits-and-misses.md") if not re.search(r"^miss |unsafe", line)}
    assert len(expected) == 2
    assert expected <= said

    done = host.model_cache("status", "--root", str(root), "--json")
    [wheel] = json.loads(done.stdout)["wheels"]
    assert wheel["intact"]
    assert {(found["adopted"], found["hit"], found["parts"]) for found in wheel["looked_up"]} == {
        (True, True, 1),
        (False, True, 1),
    }
    [adopted] = wheel["adopted"]
    [other] = {found["key"] for found in wheel["looked_up"] if not found["adopted"]}
    objects = [{path.name for path in place.rglob("*.so")} for place in (root / adopted, root / CACHE / other)]
    assert objects[0] == objects[1] != set(), "no kernel was compiled besides those of the wheel"
    [status] = shown.run(
        shown.commands("hits-and-misses.md", "model-cache status"), host.work, **environment(host, root)
    )
    assert plain(status.output) == plain(status.command.output or "")


def test_a_check_beforehand_names_the_flag(host: CpuHost) -> None:
    """docs/guides/hits-and-misses.md"""
    variables = environment(host, host.place / "not-there") | {"MODEL_CACHE_PYTHON": str(host.python)}
    [command] = shown.commands("hits-and-misses.md", "model-cache check")
    [checked] = shown.run([command], host.work, codes={command.text: 10}, **variables)
    assert plain(checked.output) == plain(command.output or "")

    [checked] = shown.run([command], host.work, codes={command.text: 10}, **variables, CI="true")
    assert "error_on_custom_op_aliasing is true here, false in the wheel. Unset CI." in checked.output


def plain(text: str) -> str:
    """Without what differs from run to run, and for the CPU that is here."""
    text = text.replace("x86-64-avx512", here())
    return re.sub(r"\([0-9a-f]{12}…\)", "(KEY…)", re.sub(r" in [\d.]+ s", " in SECONDS", text))


def test_a_difference_in_the_config_is_no_adoption(host: CpuHost) -> None:
    other = host.work / "other"
    shutil.copytree(host.work / OTHER, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-6}))
    root = host.place / "other-root"
    root.mkdir()
    shutil.copytree(host.place / "cold/modelinfos", root / "modelinfos")
    [answer] = ask(host, "start", [Line("other", "./other", environment=MUST_LOAD)], root)
    assert "error" in answer
    assert "model-cache: miss backbone rank 0_0: no installed wheel is for this model" in answer["log"]
