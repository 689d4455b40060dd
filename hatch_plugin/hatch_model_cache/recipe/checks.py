"""The checks of a recipe: every problem is collected, each with its full TOML path."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from hatch_model_cache import targets
from hatch_model_cache.compile import engines
from hatch_model_cache.compile.engines import layout
from hatch_model_cache.packing.leaks import secret_kind, secret_name
from hatch_model_cache.packing.wheel_size import size_problem
from hatch_model_cache.recipe import checkpoint, component_checks, config_checks, naming, object_store, program_checks
from hatch_model_cache.recipe.recipe import options
from hatch_model_cache.recipe.toml_words import as_text, given
from model_cache.wheel.names import printable

ENGINES = engines.NAMES
"""Engines with an adapter."""

KEPT = ("ptx",)
"""What the option `keep` may name."""

HATCHLING_KEYS = frozenset(
    ("dependencies", "enable-by-default", "require-runtime-dependencies", "require-runtime-features")
)
"""Keys of any build hook that hatchling itself reads."""

_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([.][a-z0-9]+)*)?")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


def check(table: Mapping[str, Any], where: str, project: Path) -> tuple[dict[str, Any], list[str]]:
    """Check a recipe's table.

    Returns the values of Recipe's fields, as complete as they are right, and the problems, one line each.
    """
    checker = _Checker(table, where, project)
    return checker.run(), checker.problems


class _Checker:
    def __init__(self, table: Mapping[str, Any], where: str, project: Path) -> None:
        self.table = table
        self.where = where
        self.project = project
        self.problems: list[str] = []

    def problem(self, key: str, text: str) -> None:
        self.problems.append(f"{self.where}.{key}: {text}")

    def run(self) -> dict[str, Any]:
        self.unknown_keys()
        model = self.string("model", required=True, check=_model_problem)
        values: dict[str, Any] = {
            "engine": self.string("engine", required=True, check=_engine_problem),
            "model": model,
            "revision": self.string("revision"),
            "config": self.string("config"),
            "checkpoint": self.string("checkpoint", check=lambda text: checkpoint.problem(text, self.project)),
            "served_as": self.strings("served-as") or ((model,) if model else ()),
            "targets": self.strings("targets", required=True),
            "serve_args": self.strings("serve-args", may_be_empty=True),
            "environment": self.environment(),
            "device_layout": self.string("device-layout", check=_layout_problem) or layout.PER_RANK,
            "packages_directory": self.string("packages-directory", check=_packages_problem),
            "drafts": self.drafts(),
            "factory": self.string("factory", check=program_checks.factory_problem),
            "mode": self.string("mode", check=program_checks.mode_problem) or "mega",
            "python": self.string("python", check=_python_problem),
            "name_with_org": self.boolean("name-with-org"),
            "hardware": self.string("hardware", check=_word_problem),
            "variant": self.string("variant", check=_word_problem),
            "max_wheel_size": self.string("max-wheel-size", check=size_problem),
            "components": self.strings("components", may_be_empty=True),
            "keep": self.strings("keep", may_be_empty=True),
            "selfcheck": self.boolean("selfcheck"),
        }
        for key, text in program_checks.problems(self.table, values["engine"]):
            self.problem(key, text)
        self.engine_version(values["engine"])
        self.config(values["config"], model, values["engine"])
        self.kinds(values["engine"], values["targets"])
        self.hardware(values["targets"], values["hardware"])
        self.serve_args(values["serve_args"], values["served_as"], values["revision"])
        self.speculative(values["serve_args"], values["drafts"])
        if wrong := object_store.environment_problem(values["served_as"], values["environment"]):
            self.problem(f"environment.{object_store.VARIABLE}", wrong)
        for key, text in component_checks.problems(values):
            self.problem(key, text)
        self.evidence(values["targets"], values["keep"], selfcheck=values["selfcheck"])
        self.layout(values["targets"])
        self.packages(values["environment"])
        return values

    def unknown_keys(self) -> None:
        known = [option.key for option in options()]
        for key in self.table:
            if key in known or key in HATCHLING_KEYS:
                continue
            near = difflib.get_close_matches(key.replace("_", "-").lower(), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"the options are {', '.join(known)}."
            self.problem(key, f"unknown option; {hint}")

    def string(
        self, key: str, *, required: bool = False, check: Callable[[str], str | None] | None = None
    ) -> str | None:
        if key not in self.table:
            if required:
                self.problem(key, "is required and missing.")
            return None
        value = self.table[key]
        text = _string_problem(value) or (check(value) if check else None)
        if text:
            self.problem(key, text)
            return None
        return str(value)

    def boolean(self, key: str) -> bool:
        value = self.table.get(key, False)
        if not isinstance(value, bool):
            self.problem(key, f"must be a boolean, not {given(value)}.")
            return False
        return value

    def strings(self, key: str, *, required: bool = False, may_be_empty: bool = False) -> tuple[str, ...]:
        """The good items of a list; served-as and targets may hold nothing twice."""
        if key not in self.table:
            if required:
                self.problem(key, "is required and missing.")
            return ()
        value = self.table[key]
        if not isinstance(value, list):
            self.problem(key, f"must be a list of strings, not {given(value)}.")
            return ()
        if not value and not may_be_empty:
            self.problem(key, "must not be empty.")
        good: list[str] = []
        for index, item in enumerate(value):
            text = _item_problem(key, item)
            if not text and not may_be_empty and item in good:
                text = f"{item!r} is listed twice."
            if text:
                self.problem(f"{key}[{index}]", text)
            else:
                good.append(item)
        return tuple(good)

    def environment(self) -> dict[str, str]:
        value = self.table.get("environment", {})
        if not isinstance(value, Mapping):
            self.problem("environment", f"must be a table of strings, not {given(value)}.")
            return {}
        good = {}
        for name, item in value.items():
            text = _environment_problem(name, item)
            if text:
                self.problem(f"environment.{printable(name)}", text)
            else:
                good[name] = item
        return dict(sorted(good.items()))

    def drafts(self) -> dict[str, str]:
        value = self.table.get("drafts", {})
        if not isinstance(value, Mapping):
            self.problem("drafts", f"must be a table of strings, not {given(value)}.")
            return {}
        good = {}
        for name, item in value.items():
            text = _draft_problem(name) or _string_problem(item) or config_checks.problem(item, self.project)
            if text:
                self.problem(f"drafts.{json.dumps(printable(name))}", text)
            else:
                good[name] = item
        return dict(sorted(good.items()))

    def speculative(self, arguments: tuple[str, ...], drafts: Mapping[str, str]) -> None:
        """The speculative model and its configuration belong together."""
        given = self.table.get("drafts", {})
        if not isinstance(given, Mapping):
            return  # reported already
        named = set(speculative_models(arguments))
        for name in sorted(named - set(given)):
            self.problem("drafts", f"has no {name!r}, which `serve-args` names as speculative model.")
        for name in sorted(set(drafts) - named):
            self.problem(f"drafts.{json.dumps(printable(name))}", "no --speculative-config in `serve-args` names it.")

    def layout(self, names: Sequence[str]) -> None:
        if "device-layout" in self.table and names and all(targets.load(name).kind != "gpu" for name in names):
            self.problem("device-layout", "is for GPUs, and the targets are none: leave it away.")

    def packages(self, environment: Mapping[str, str]) -> None:
        if "packages-directory" in self.table and environment.get("VLLM_USE_AOT_COMPILE") != "0":
            self.problem(
                "packages-directory", "is in no key unless `environment` sets VLLM_USE_AOT_COMPILE to 0: leave it away."
            )

    def evidence(self, names: Sequence[str], keep: Sequence[str], *, selfcheck: bool) -> None:
        """What is kept of GPU kernels, and their check."""
        for index, item in enumerate(keep):
            if item not in KEPT:
                self.problem(f"keep[{index}]", f"must be {' or '.join(map(json.dumps, KEPT))}, not {item!r}.")
        if names and all(targets.load(name).kind != "gpu" for name in names):
            for key in [key for key, wanted in (("keep", keep), ("selfcheck", selfcheck)) if wanted]:
                self.problem(key, "is for GPU kernels, and the targets have none: leave it away.")

    def config(self, config: str | None, model: str | None, engine: str | None) -> None:
        with_json = not (engine or "").startswith(program_checks.ENGINE)
        if config is None:
            if with_json and "config" not in self.table and model and not _is_hub_id(model):
                self.problem("config", f"is missing, and `model` {model!r} is no Hub id that it could be fetched from.")
            return
        text = config_checks.problem(config, self.project, with_json=with_json)
        if text:
            self.problem("config", text)

    def engine_version(self, engine: str | None) -> None:
        if engine is None:
            return  # reported already
        name, _, version = engine.partition("==")
        if version not in engines.adapter(name).VERSIONS:
            versions = ", ".join(engines.known(name))
            self.problem("engine", f"{engine!r} is not known to this release, which knows {versions}.")

    def kinds(self, engine: str | None, names: tuple[str, ...]) -> None:
        """An engine runs on GPUs or on CPUs; and native code can be built for the one CPU that is there."""
        kinds = {name: targets.load(name).kind for name in names}
        own, _, version = (engine or "").partition("==")
        wanted = engines.kinds(own, version) if engine else ()
        for name, kind in kinds.items():
            if wanted and kind not in wanted:
                others = dict.fromkeys(
                    other if other.startswith(f"{own}==") else other.partition("==")[0]
                    for other in engines.known()
                    if kind in engines.kinds(*other.split("=="))
                )
                self.problem(
                    "targets",
                    f"{name!r} is a {kind.upper()}, and {engine} runs on {wanted[0].upper()}s: "
                    f"give a {wanted[0].upper()}, or another engine ({', '.join(others)}).",
                )
        if len(wanted) != 1 and len(set(kinds.values())) > 1:
            self.problem("targets", "holds GPUs and CPUs, which are built for on different machines: make two recipes.")
        if list(kinds.values()).count("cpu") > 1:
            self.problem(
                "targets", "holds several CPUs: a build compiles for the CPU it runs on, so one recipe has one."
            )

    def hardware(self, names: tuple[str, ...], hardware: str | None) -> None:
        known = [targets.load(name) for name in names]
        if not known or len(known) < len(self.table["targets"]):
            return  # reported already
        natural = naming.hardware_name(known)
        if natural is None and hardware is None and "hardware" not in self.table:
            architectures = ", ".join(f"{target.name} is {target.architecture}" for target in known)
            self.problem(
                "hardware",
                f'is required for several architectures ({architectures}): say it, like "a100-h100".',
            )
        elif len(known) == 1 and hardware is not None and hardware != natural:
            self.problem("hardware", f"is {hardware!r} but the only target is {natural!r}; leave the option away.")

    def serve_args(self, arguments: tuple[str, ...], served_as: tuple[str, ...], revision: str | None) -> None:
        names = {*served_as, self.table.get("model")}
        for index, argument in enumerate(arguments):
            flag, equals, value = argument.partition("=")
            flag = flag.replace("_", "-") if argument.startswith("--") else flag
            # A model's name after a flag is that flag's value (`--tokenizer org/M`).
            positional = not argument.startswith("-") and (index == 0 or not arguments[index - 1].startswith("-"))
            text = None
            if flag == "--model":
                text = "the model is the option `model`, and its served names are `served-as`."
            elif flag == "--served-model-name":
                text = "the name in the API changes no cache key; give it when serving, not here."
            elif flag == "--enforce-eager":
                text = "an engine with --enforce-eager compiles nothing, so there is nothing to cache: leave it away."
            elif flag == "--revision" and revision is not None:
                given = value if equals else "".join(arguments[index + 1 : index + 2])
                if given != revision:
                    text = f"--revision {given} contradicts the option `revision` {revision!r}."
            elif positional and (index == 0 or argument in names):
                text = f"{argument!r} stands where a model's name does: the model is the option `model`."
            if text:
                self.problem(f"serve-args[{index}]", text)


def speculative_models(arguments: Sequence[str]) -> Iterator[str]:
    """The models that ``--speculative-config`` names, as ``{"model": "…"}``."""
    for index, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") in ("--speculative-config", "-sc"):
            text = value if equals else "".join(arguments[index + 1 : index + 2])
            with suppress(ValueError, RecursionError):  # the engine says what is wrong with it
                options = json.loads(text)
                if isinstance(options, dict) and isinstance(options.get("model"), str):
                    yield options["model"]


def _draft_problem(name: str) -> str | None:
    """A draft is put where the engine looks for it, which must be below its working directory."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or not name.isprintable() or ":" in name:
        return "must be a Hub id or a directory relative to where the engine is started."
    return None


def _string_problem(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"must be a string, not {given(value)}."
    if not value.strip():
        return "must not be empty."
    if value != value.strip():
        return f"must not start or end with blanks: {value!r}."
    if not value.isprintable():
        return f"must not hold control characters: {value!r}."
    return None


def _item_problem(key: str, item: Any) -> str | None:
    if key == "serve-args" and isinstance(item, str):  # "" and JSON with newlines are values like others
        if "\0" in item:
            return "must not hold a NUL character."
        kind = secret_kind(item.encode())
        return f"holds {kind}: a recipe and its wheel are for others to read." if kind else None
    text = _string_problem(item)
    if text or key != "targets":
        return text
    try:
        targets.load(item)
    except targets.UnknownTarget as error:
        return f"{error}"
    return None


def _model_problem(model: str) -> str | None:
    if not naming.model_slug(model):
        return f"{model!r} leaves nothing for the distribution's name."
    return None


def _engine_problem(engine: str) -> str | None:
    name, equals, version = engine.partition("==")
    if not equals or not _VERSION.fullmatch(version):
        return f'must be a name and an exact version, like "vllm==0.33.0", not {engine!r}.'
    if name not in ENGINES:
        near = difflib.get_close_matches(name.lower(), ENGINES, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(ENGINES)}."
        return f"no adapter for the engine {name!r}; {hint}"
    return None


def _python_problem(python: str) -> str | None:
    if not Path(python).is_absolute():
        return f"must be an absolute path, not {python!r}: a build runs in a temporary directory."
    return None


def _packages_problem(text: str) -> str | None:
    if PurePosixPath(text).is_absolute() and str(PurePosixPath(text)) == text and ".." not in text.split("/"):
        return None
    return f"must be an absolute path without `..` or a slash at its end, not {printable(text)!r}."


def _layout_problem(name: str) -> str | None:
    if name not in layout.LAYOUTS:
        return f"must be {' or '.join(map(json.dumps, layout.LAYOUTS))}, not {name!r}."
    return None


def _word_problem(word: str) -> str | None:
    """Of a part of the distribution's name."""
    if not _WORD.fullmatch(word):
        return f'must be words of [a-z0-9] joined by "-" or ".", not {word!r}.'
    return None


def _environment_problem(name: str, value: Any) -> str | None:
    if not _ENVIRONMENT_NAME.fullmatch(name):
        return f"{name!r:.80} is no name of an environment variable."
    if not isinstance(value, str):
        return f'must be a string, not {given(value)}; write "{as_text(value)}".'
    if "\0" in value:
        return "must not hold a NUL character."
    kind = "the name of a secret" if secret_name(name) else secret_kind(value.encode())
    if kind:
        return f"has {kind}: a recipe and its wheel are for others to read. Set it on the serving host only."
    return None


def _is_hub_id(model: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", model, re.ASCII))
