"""The recipe: what is to be compiled. Options and their defaults are the one dataclass `Recipe`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_model_cache.compile.engines.layout import PER_RANK
from hatch_model_cache.recipe import checkpoint as checkpoints
from hatch_model_cache.recipe import naming
from model_cache.errors import UsageError

if TYPE_CHECKING:
    from hatch_model_cache.targets import AnyTarget

__all__ = ["HOOK", "WHERE", "Option", "Recipe", "config_files", "config_sha256", "options", "options_table"]

HOOK = "model-cache"
WHERE = f"tool.hatch.build.hooks.{HOOK}"

WEIGHT_SUFFIXES = frozenset(
    {".bin", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".nemo", ".npy", ".npz", ".onnx", ".pt", ".pth"}
    | {".safetensors", ".tflite"}
)
"""Files that hold weights: never opened, never part of a recipe."""


def _option(kind: str, text: str, *, default: Any = dataclasses.MISSING, factory: Any = None, shown: str = "") -> Any:
    metadata = {"kind": kind, "help": text, "shown": shown}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of `[tool.hatch.build.hooks.model-cache]`; a field `serve_args` is the key `serve-args`.

    Made by `file.parse`, which checks every value. Paths stay as written; see `config_dir`.
    """

    engine: str = _option("string", 'What will load the cache, with its exact version: `"vllm==0.33.0"`')
    model: str = _option("string", "Model id on the Hub, or the directory or URL it is served from")
    revision: str | None = _option(
        "string", "Commit of the model on the Hub, from which an absent `config` is fetched", default=None
    )
    config: str | None = _option(
        "string",
        "Directory with `config.json` (and tokenizer files), relative to the project or absolute; "
        "without it the files are fetched from the Hub (extra `hub`). Engine `torch`: directory with the factory's "
        "module and the files that it reads",
        default=None,
    )
    checkpoint: str | None = _option(
        "string",
        "Where the weights are, of which the headers are read: a directory with `*.safetensors`, relative to the "
        'project or absolute, or `"ORG/NAME@COMMIT"` on the Hub (extra `hub`). Names, shapes and dtypes must fit the '
        "model; without it they are taken for granted",
        default=None,
    )
    served_as: tuple[str, ...] = _option(
        "list of strings",
        "Every name the model is served under: each is a cache key of its own, all share one compile",
        factory=tuple,
        shown="`[model]`",
    )
    targets: tuple[str, ...] = _option(
        "list of strings", "GPUs, or the one kind of CPU, to compile for; see `model-cache targets`"
    )
    serve_args: tuple[str, ...] = _option(
        "list of strings", "Arguments of `vllm serve`, without the model's name", factory=tuple
    )
    environment: Mapping[str, str] = _option(
        "table of strings", "Environment variables that the serving host sets for the engine", factory=dict
    )
    device_layout: str = _option(
        "string",
        'GPU that the code of rank *r* names, of several ranks: `"per-rank"`, the *r*-th, as `vllm serve` starts them; '
        '`"single"`, the first, where a launcher shows every process one GPU only',
        default=PER_RANK,
    )
    packages_directory: str | None = _option(
        "string",
        "With `VLLM_USE_AOT_COMPILE=0`: absolute path of the directory that holds the engine's packages on the serving "
        "host, which is in the key then",
        default=None,
        shown="where they are here",
    )
    drafts: Mapping[str, str] = _option(
        "table of strings",
        "Speculative models: name in `--speculative-config` → directory with its `config.json`, like `config`",
        factory=dict,
    )
    factory: str | None = _option(
        "string",
        'Engine `torch`: `"module:function"`, which returns a module and a tuple of its inputs; the module is looked '
        "for in `config`, then in the engine's environment",
        default=None,
    )
    mode: str = _option("string", "Engine `torch`: `mega`, or `standalone` (without `torch.compile`)", default="mega")
    python: str | None = _option(
        "string", "Absolute path of the engine's interpreter; `MODEL_CACHE_PYTHON` wins over it", default=None
    )
    name_with_org: bool = _option("boolean", "Keep the model's organisation in the distribution's name", default=False)
    hardware: str | None = _option(
        "string", "Hardware in the distribution's name, for targets of several architectures", default=None
    )
    variant: str | None = _option(
        "string",
        "Word in the distribution's name that tells recipes of one model and hardware apart, which differ in "
        "`serve-args` or `environment`",
        default=None,
    )
    max_wheel_size: str | None = _option(
        "string",
        'Largest wheel that a build may leave, like `"100 MB"`; the limit of public indexes is often that',
        default=None,
    )
    components: tuple[str, ...] = _option(
        "list of strings",
        'Caches beside that of compiled models which the wheel holds too: `"triton"`, the Triton kernels of the '
        "engine's own runner and sampler (vLLM 0.33.0, GPUs)",
        factory=tuple,
    )
    keep: tuple[str, ...] = _option(
        "list of strings",
        'What the wheel keeps beside the caches: `"ptx"`, what its GPU kernels were made from, which '
        "`model-cache selfcheck` needs; engines never see it",
        factory=tuple,
    )
    selfcheck: bool = _option(
        "boolean",
        'Check the GPU kernels when they are compiled, and stop if one fails; keeps `"ptx"` too',
        default=False,
    )
    project_dir: Path | None = field(default=None, compare=False, repr=False)
    """Where `pyproject.toml` is; no option. None: the recipe is in no project, and its paths are absolute."""

    @property
    def engine_name(self) -> str:
        """`vllm` of `vllm==0.33.0`."""
        return self.engine.partition("==")[0]

    @property
    def engine_version(self) -> str:
        """`0.33.0` of `vllm==0.33.0`."""
        return self.engine.partition("==")[2]

    @property
    def config_dir(self) -> Path | None:
        """Absolute path of the directory with config.json; None when it is to be fetched."""
        return None if self.config is None else self._resolved(self.config)

    def headers(self) -> checkpoints.Headers | None:
        """The headers of its `checkpoint`, read now; None without one. Raises as `checkpoint.read`."""
        return None if self.checkpoint is None else checkpoints.read(self.checkpoint, self.project_dir)

    @property
    def draft_dirs(self) -> dict[str, Path]:
        """Absolute path of the directory of every speculative model."""
        return {name: self._resolved(directory) for name, directory in self.drafts.items()}

    def _resolved(self, path: str) -> Path:
        return ((self.project_dir or Path()) / path).resolve()

    @property
    def engine_arguments(self) -> tuple[str, ...]:
        """What the engine's adapter is told, after the directory with the config files."""
        return self.serve_args if self.factory is None else (self.factory, self.mode)

    @property
    def keeps_evidence(self) -> bool:
        """Whether the wheel holds what its kernels were made from."""
        return self.selfcheck or "ptx" in self.keep

    def load_targets(self) -> tuple[AnyTarget, ...]:
        """The targets' data, in the recipe's order."""
        from hatch_model_cache import targets

        return tuple(targets.load(name) for name in self.targets)

    @property
    def distribution_name(self) -> str:
        """The only name that the recipe's project may have."""
        hardware = self.hardware or naming.hardware_name(self.load_targets())
        if hardware is None:  # parse() has refused this
            raise UsageError("These targets need the option `hardware`: they are of several architectures.")
        return naming.distribution_name(self.model, hardware, variant=self.variant, with_org=self.name_with_org)

    @property
    def data_package(self) -> str:
        """Name of the wheel's only top-level directory."""
        return naming.data_package(self.distribution_name)

    def as_dict(self) -> dict[str, Any]:
        """All options under their TOML keys, as JSON values."""
        return {option.key: _plain(getattr(self, option.attribute)) for option in options()}

    def digest(self) -> str:
        """SHA-256 (hex) of what decides the artifacts: the options and every file of the config directories.

        `python` and the spellings of `config`, `drafts` and a directory in `checkpoint` stay out: they say where
        something is on this machine, and the same recipe must have the same digest in a checkout, in an unpacked sdist
        and in CI. So does the size that a wheel may have. Of weights the headers count, if there is a `checkpoint`.

        Raises as `checkpoint.read` if there is one.
        """
        outside = ("components", "python", "config", "checkpoint", "drafts", "max-wheel-size")
        described = {key: value for key, value in self.as_dict().items() if key not in outside}
        files = None if self.config_dir is None else _digests(self.config_dir)
        document: dict[str, Any] = {"options": described, "config": files}
        if self.components:
            document["components"] = sorted(self.components)
        if self.drafts:
            document["drafts"] = {name: _digests(directory) for name, directory in self.draft_dirs.items()}
        if self.checkpoint is not None:
            document["checkpoint"] = checkpoints.identity(self.checkpoint, self.project_dir)
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def warnings(self) -> list[str]:
        """What a build should say aloud: nothing wrong, and likely to surprise on the serving host."""
        found = []
        if self.config is None and self.revision is None and self.factory is None:
            found.append(
                f"`revision` is not set: config.json of {self.model} is fetched from the newest commit, "
                "so the same recipe may give another wheel tomorrow."
            )
        flags = {argument.partition("=")[0].replace("_", "-") for argument in self.serve_args}
        loose = (
            []
            if self.factory
            else [flag for flag in ("--max-num-batched-tokens", "--max-num-seqs") if flag not in flags]
        )
        if loose:
            found.append(
                f"`serve-args` does not set {' and '.join(loose)}: the engine's default depends on the GPU and on the "
                "entry point (`vllm serve` or `LLM()`), and is part of the cache key. Set it here and when serving."
            )
        if self.environment.get("VLLM_COMPILE_CACHE_SAVE_FORMAT") == "unpacked":
            found.append(
                "`environment.VLLM_COMPILE_CACHE_SAVE_FORMAT` is unpacked: several processes cannot share what an "
                "engine keeps in that format. It is part of the cache key; an AOT artifact is the same in both."
            )
        return found

    def doubts(self) -> list[str]:
        """What is not certain of the targets. Nothing in the recipe could change that: it is for who compiles."""
        from hatch_model_cache import targets

        return [
            f"target {target.name}: no public source confirms {', '.join(target.unverified)}; "
            "compare with `model-cache targets probe` on such a GPU."
            for target in self.load_targets()
            if isinstance(target, targets.Target) and target.unverified
        ]


@dataclass(frozen=True)
class Option:
    """One documented option of the recipe."""

    key: str
    """As written in TOML: `serve-args`."""
    attribute: str
    """Field of `Recipe`: `serve_args`."""
    kind: str
    """Type in words: `list of strings`."""
    default: Any
    """`dataclasses.MISSING` when the option is required."""
    shown: str
    """The default as the documentation writes it."""
    help: str

    @property
    def required(self) -> bool:
        """Whether a recipe without it is refused."""
        return self.default is dataclasses.MISSING


def options() -> tuple[Option, ...]:
    """Every option, in the order of the documentation."""
    found = []
    for item in dataclasses.fields(Recipe):
        if "kind" not in item.metadata:
            continue
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        required = default is dataclasses.MISSING
        found.append(
            Option(
                key=item.name.replace("_", "-"),
                attribute=item.name,
                kind=item.metadata["kind"],
                default=default,
                shown=item.metadata["shown"] or ("required" if required else _toml(default)),
                help=item.metadata["help"],
            )
        )
    return tuple(found)


def options_table() -> str:
    """The options as a Markdown table; docs/reference.md has it."""
    lines = ["| option | type | default | meaning |", "|---|---|---|---|"]
    for option in options():
        lines.append(f"| `{option.key}` | {option.kind} | {option.shown} | {option.help} |")
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "`{}`" if isinstance(value, Mapping) else f"`{json.dumps(value)}`"  # a tuple prints as a list


def config_files(directory: Path) -> Iterator[tuple[str, Path]]:
    """Files of a config directory that belong to the recipe: (relative POSIX path, path), sorted.

    Weights and hidden files (`.git`, `.cache`) do not.
    """
    found = {}
    for path in directory.rglob("*"):
        relative = path.relative_to(directory)
        if any(part.startswith(".") or part == "__pycache__" for part in relative.parts):
            continue
        if path.suffix.lower() not in WEIGHT_SUFFIXES and path.is_file():
            found[relative.as_posix()] = path
    yield from sorted(found.items())


def config_sha256(directory: Path) -> str:
    """SHA-256 (hex) of config.json in a config directory; of all its files where there is none (engine `torch`)."""
    file = directory / "config.json"
    if file.is_file():
        return _sha256(file)
    return hashlib.sha256(json.dumps(_digests(directory), sort_keys=True).encode()).hexdigest()


def _digests(directory: Path) -> dict[str, str]:
    return {name: _sha256(path) for name, path in config_files(directory)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
