"""The build hook `model-cache`: finds or compiles artifacts and has hatchling pack them as data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

from hatch_model_cache.packing import sbom
from hatch_model_cache.packing.artifacts import FILE_NAME, Artifacts, read
from hatch_model_cache.packing.pack import Packed, pack
from hatch_model_cache.packing.wheel_check import check_wheel
from hatch_model_cache.packing.wheel_size import check_size, parse_size
from hatch_model_cache.recipe import naming
from hatch_model_cache.recipe.file import build_table, parse, version_warnings
from hatch_model_cache.recipe.recipe import HOOK, WEIGHT_SUFFIXES, Recipe, config_files
from hatch_model_cache.selfcheck import evidence, subject
from model_cache.errors import DamagedError, ModelCacheError, UsageError
from model_cache.wheel.names import normalize, printable

if TYPE_CHECKING:
    from model_cache.origin.ed25519 import PrivateKey

ARTIFACTS_VARIABLE = "MODEL_CACHE_ARTIFACTS"
"""Environment variable with the absolute path of an artifact directory."""

ARTIFACTS_DIRECTORY = "artifacts"
"""Artifact directory beside pyproject.toml, used when the variable is not set."""

CORE_METADATA_VERSION = "2.4"
"""hatchling >= 1.32 writes 2.5 by default, which older upload tools and indexes refuse."""

SERVING_DISTRIBUTION = "hatch-model-cache"


class ModelCacheBuildHook(BuildHookInterface[Any]):
    """See the module. An sdist carries the recipe only; an editable install is refused."""

    PLUGIN_NAME = HOOK

    _staging: TemporaryDirectory[str] | None = None
    _packed: Packed | None = None
    _key: PrivateKey | None = None
    _limit: int | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare one build: hatchling calls this for the sdist, and again for the wheel."""
        if version == "editable":
            self._stop(
                UsageError("A model cache cannot be installed in editable mode: build a wheel and install that.")
            )
        try:
            name = self.metadata.core.raw_name
            recipe = parse(self.config, where=self._where(), project_dir=self.root, name=name)
            if self.target_name == "sdist":
                self._prepare_sdist(recipe, build_data)
            elif self.target_name == "wheel":
                self._prepare_wheel(recipe, build_data)
            else:
                raise UsageError(f"The build hook `{HOOK}` makes wheels and sdists, not `{self.target_name}`.")
        except ModelCacheError as error:
            self._stop(error)
        self._complete_metadata(recipe, build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Look at the wheel that came out; take it away again when it is not what was prepared."""
        if self._packed is None:
            return
        package = naming.data_package(self._packed.manifest.name)
        problems = check_wheel(Path(artifact_path), self._packed, package)
        if problems:
            Path(artifact_path).unlink()
            self._stop(DamagedError("The finished wheel is not as it was prepared, and is deleted:", problems))
        if self._key is not None:
            self._sign(Path(artifact_path), self._key)
        if self._limit is not None:
            self._check_size(Path(artifact_path), self._packed, package, self._limit)
        self._clean_staging()

    def _sign(self, wheel: Path, key: PrivateKey) -> None:
        from hatch_model_cache.packing.signing import sign_wheel, time_of_build

        try:
            sign_wheel(wheel, key, created=time_of_build())
        except ModelCacheError as error:
            wheel.unlink()
            self._stop(error)

    def _check_size(self, wheel: Path, packed: Packed, package: str, limit: int) -> None:
        try:
            check_size(wheel, packed.manifest, package, limit)
        except UsageError as error:
            wheel.unlink()
            self._stop(error)

    def _where(self) -> str:
        """TOML path of the table that hatchling handed over."""
        own = HOOK in self.build_config.target_config.get("hooks", {})
        target = f"targets.{self.target_name}." if own else ""
        return f"{build_table(Path(self.root))[1]}.{target}hooks.{HOOK}"

    def _prepare_sdist(self, recipe: Recipe, build_data: dict[str, Any]) -> None:
        """The recipe and its config files, whatever version control ignores; never artifacts nor weights."""
        root = Path(self.root)
        given = os.environ.get(ARTIFACTS_VARIABLE)
        excluded = [f"/{ARTIFACTS_DIRECTORY}", "/dist"]
        if given and Path(given).is_relative_to(root) and Path(given) != root:
            excluded.append(f"/{Path(given).relative_to(root).as_posix()}")
        if recipe.config is not None and not Path(recipe.config).is_absolute():
            directory = root / recipe.config
            relative = Path(os.path.relpath(directory, root)).as_posix()
            excluded += [f"/{relative}/**/*{suffix}" for suffix in sorted(WEIGHT_SUFFIXES)]
            for name, path in config_files(directory):
                build_data["force_include"][str(path)] = f"{relative}/{name}"
        config = self.build_config
        patterns = config.target_config.get("exclude", config.build_config.get("exclude", []))
        if isinstance(patterns, list):  # else hatchling says that it must be one
            config.target_config["exclude"] = [*patterns, *excluded]
        if not given and (root / ARTIFACTS_DIRECTORY / FILE_NAME).exists():
            self._warn(
                f"the sdist leaves ./{ARTIFACTS_DIRECTORY} out, so a wheel built from it cannot see them: "
                f"set {ARTIFACTS_VARIABLE}={root / ARTIFACTS_DIRECTORY}, or build with --wheel."
            )

    def _prepare_wheel(self, recipe: Recipe, build_data: dict[str, Any]) -> None:
        version = self.metadata.version
        for warning in version_warnings(version):
            self._warn(warning)
        self._key = _signing_key()  # before anything is compiled
        self._limit = parse_size(recipe.max_wheel_size) if recipe.max_wheel_size else None
        self._staging = TemporaryDirectory(prefix="model-cache-build-")
        staging = Path(self._staging.name)
        artifacts = self._artifacts(recipe, staging)
        packed = pack(artifacts, recipe, name=recipe.distribution_name, version=version)
        package = naming.data_package(packed.manifest.name)
        manifest = staging / "manifest.json"
        manifest.write_bytes(packed.manifest_bytes)
        # One by one: hatchling drops some names of a directory, and follows links in it.
        include = build_data["force_include"]
        include[str(manifest)] = f"{package}/manifest.json"
        for member, source in packed.members().items():
            include[str(_not_executable(source, staging / Path(member).name))] = f"{package}/{member}"
        _add_sbom(packed, staging, build_data)
        _add_evidence(artifacts, staging, build_data)
        build_data["tag"] = packed.tag
        build_data["pure_python"] = packed.pure
        self._packed = packed
        for warning in dict.fromkeys([*recipe.warnings(), *recipe.doubts(), *packed.manifest.build.warnings]):
            self._warn(printable(warning))

    def _artifacts(self, recipe: Recipe, staging: Path) -> Artifacts:
        """The first source that there is: the environment variable, ./artifacts, a compile."""
        given = os.environ.get(ARTIFACTS_VARIABLE)
        beside = Path(self.root) / ARTIFACTS_DIRECTORY
        if given:
            if not Path(given).is_absolute():
                raise UsageError(
                    f"{ARTIFACTS_VARIABLE} must be an absolute path, not `{given}`: "
                    "a build runs in a temporary directory."
                )
            artifacts = read(given)
        elif beside.is_dir():
            artifacts = read(beside)
        else:
            from hatch_model_cache.compiling.compiler import compile_recipe
            from hatch_model_cache.compiling.progress import shown

            out = staging / ARTIFACTS_DIRECTORY
            with shown(quiet=self.app.verbosity < 0) as progress:
                compile_recipe(recipe, out, progress=progress)
            return read(out)
        _check_torch(artifacts)
        return artifacts

    def _complete_metadata(self, recipe: Recipe, build_data: dict[str, Any]) -> None:
        """What a recipe project need not say. The sdist says the same, so that no installer sees two truths.

        hatchling has read [project] by now and keeps what it read: its properties return the very mappings
        that it writes (1.27 to 1.33). `finalize` makes sure that they came out.
        """
        core = self.metadata.core
        name = recipe.distribution_name
        core.entry_points.setdefault(naming.ENTRY_POINT_GROUP, {})[name] = recipe.data_package
        core.optional_dependencies.setdefault(recipe.engine_name, [recipe.engine])
        self.build_config.target_config.setdefault("core-metadata-version", CORE_METADATA_VERSION)
        known = {normalize(requirement.name) for requirement in core.dependencies_complex.values()}
        if SERVING_DISTRIBUTION not in known:
            build_data["dependencies"].append(SERVING_DISTRIBUTION)
        others = sorted(known - {SERVING_DISTRIBUTION})
        if others and self.target_name == "wheel":
            self._warn(f"project.dependencies names {', '.join(others)}: the wheel would bring it to the serving host.")

    def _warn(self, text: str) -> None:
        self.app.display_warning(f"{HOOK}: warning: {text}")

    def _stop(self, error: ModelCacheError) -> NoReturn:
        self._clean_staging()
        self.app.abort(f"{HOOK}: {error}", code=error.exit_code)
        raise SystemExit(error.exit_code)  # for an app whose abort returns

    def _clean_staging(self) -> None:
        if self._staging is not None:
            self._staging.cleanup()
            self._staging = None


def _signing_key() -> PrivateKey | None:
    """The key that MODEL_CACHE_SIGNING_KEY names; None when it is not set. Raises UsageError, NotTrustedError."""
    from hatch_model_cache.packing.signing import KEY_VARIABLE, load_key

    path = os.environ.get(KEY_VARIABLE)
    if not path:
        return None
    if not Path(path).is_absolute():
        raise UsageError(
            f"{KEY_VARIABLE} must be an absolute path, not `{path}`: a build runs in a temporary directory."
        )
    return load_key(path)


def _add_sbom(packed: Packed, staging: Path, build_data: dict[str, Any]) -> None:
    """Put the bill of materials into dist-info/sboms."""
    path = staging / sbom.FILE_NAME
    path.write_bytes(sbom.to_bytes(packed.manifest))
    if "sbom_files" in build_data:
        build_data["sbom_files"].append(str(path))
    else:  # an older hatchling knows only dist-info/extra_metadata
        build_data["extra_metadata"][str(path)] = f"sboms/{sbom.FILE_NAME}"


def _add_evidence(artifacts: Artifacts, staging: Path, build_data: dict[str, Any]) -> None:
    """Put what the kernels were made from into dist-info, if the artifacts keep it."""
    data = subject.evidence_of(artifacts)
    if data is not None:
        path = staging / evidence.NAME
        path.write_bytes(data)
        build_data["extra_metadata"][str(path)] = evidence.NAME


def _not_executable(source: Path, copy: Path) -> Path:
    """`source`, or `copy` made of it when it has the x bit: hatchling would carry the bit into the wheel.

    The manifest alone says which deployed files are executable, so the same content gives the same wheel
    after a transport that loses modes.
    """
    if not source.stat().st_mode & 0o100:
        return source
    shutil.copyfile(source, copy)
    copy.chmod(0o644)
    return copy


def _check_torch(artifacts: Artifacts) -> None:
    """Refuse an environment with another torch than the artifacts'; one without torch is the normal case."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        here = version("torch")
    except PackageNotFoundError:
        return
    there = artifacts.contents.engine.torch
    if not same_version(here, there):
        raise UsageError(
            f"The artifacts were compiled with torch {there}, and this build's environment has torch {here}. "
            "Build with isolation (the default), or in an environment with the same torch or none."
        )


def same_version(one: str, other: str) -> bool:
    """Whether two versions agree; a local part (`+cu130`) counts when both have one."""
    (public, _, local), (other_public, _, other_local) = one.partition("+"), other.partition("+")
    return public == other_public and (not local or not other_local or local == other_local)
