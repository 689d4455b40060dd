"""Wheels and observations for the tests of `check`, without an engine: one value is changed, the rest is equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from factories import CONTENTS, H100, MODEL, make_document, sha
from hatch_model_cache.checking.changes import CommandLine
from hatch_model_cache.checking.verdict import Observation, Verdict, judge
from hatch_model_cache.compile.engines.vllm_rules import RULES
from model_cache.wheel.manifest import Manifest, from_dict

KEYS = [directory.rpartition("/")[2] for directory in CONTENTS]
"""Of the wheel's two entries; the first is for MODEL."""
OTHER_KEY = sha(b"another key")

FACTORS = {
    "cache.cache_dtype": "auto",
    "compilation.mode": "3",
    "env.NVCC_THREADS": "null",
    "env.VLLM_USAGE_SOURCE": "image",
    "inductor.max_autotune": "false",
    "inductor.system.device.name": str(H100["device_name"]),
    "kernel.autotune": "true",
    "model.dtype": "torch.bfloat16",
    "model.quantization": "null",
    "model.trust_remote_code": "false",
    "scheduler.async_scheduling": "true",
    "scheduler.max_num_seqs": "1024",
}
FLAGS = {
    "cache.cache_dtype": "--kv-cache-dtype",
    "kernel.autotune": "--enable-autotune",
    "compilation": "--compilation-config",
    "model.dtype": "--dtype",
    "model.quantization": "--quantization",
    "model.seed": "--seed",
    "model.trust_remote_code": "--trust-remote-code",
    "speculative": "--speculative-config",
    "scheduler.async_scheduling": "--async-scheduling",
    "scheduler.max_num_seqs": "--max-num-seqs",
    "vllm.optimization_level": "--optimization-level",
}
OPTIONS = {**{flag: flag for flag in FLAGS.values()}, "-q": "--quantization", "-O": "--optimization-level"}
HOST = {rule.fact: False for rule in RULES if rule.fact.startswith("has_")} | {"peer_access": True}
UNKEYED = {rule.fact: None for rule in RULES if rule.fact not in HOST}


def wheel(**changes: Any) -> Manifest:
    """The wheel of `factories`, with the factors above; changes: as for `factories.make_document`, "." written "__"."""
    values = {"factors": {"f": FACTORS}, "host_answers": HOST, "unkeyed": UNKEYED}
    return from_dict(make_document(changes=values | {k.replace("__", "."): v for k, v in changes.items()}))


def look_up(key: str = KEYS[0], prefix: str = "backbone", **factors: str | None) -> dict[str, Any]:
    """What the engine looks for. factors: those that differ from the wheel's, "." written "__"; None: absent."""
    changed = {name.replace("__", "."): value for name, value in factors.items()}
    values = {**FACTORS, "model.model": MODEL} | changed
    return {
        "key": key,
        "prefix": prefix,
        "factors": {name: value for name, value in values.items() if value is not None},
        "unkeyed": dict(UNKEYED),
    }


def observation(
    *look_ups: Mapping[str, Any],
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    target: Mapping[str, Any] = H100,
    engine: Mapping[str, str] | None = None,
    host_answers: Mapping[str, Any] = HOST,
) -> Observation:
    """What the engine on a host says that equals the build in everything but the arguments."""
    versions = vars(wheel().engine) | dict(engine or {})
    variables = {"VLLM_USAGE_SOURCE": "image"} if environment is None else environment
    command = CommandLine(("org/model", "--max-num-seqs", "1024", *arguments), variables, FLAGS, OPTIONS)
    return Observation(target, versions, host_answers, look_ups or (look_up(),), None, command)


def verdict(seen: Observation, manifest: Manifest | None = None) -> Verdict:
    """Judge with all the rules there are."""
    return judge(manifest or wheel(), seen, RULES)


def missed(
    arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, **factors: str | None
) -> Verdict:
    """The verdict on a host whose engine looks for another key, since these factors differ."""
    return verdict(observation(look_up(OTHER_KEY, **factors), arguments=arguments, environment=environment))
