"""vLLM's cache key and the named values in it, computed by vLLM's own code.

Facts of vllm 0.31.0 to 0.33.0: the AOT key is the SHA-256 over
``vllm.compilation.caching.aot_compile_hash_factors`` and ``vllm.compilation.decorators._model_hash_key``, put together
in the ``__call__`` that ``_support_torch_compile`` gives to every compiled model class. It then looks for
``<root>/torch_compile_cache/torch_aot_compile/<key>/rank_<rank>_<dp rank>/model``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONG = 200
"""A factor's value with more characters than this is recorded by its digest."""

_SECRET_NAME = re.compile(r"(KEY|TOKEN|CREDENTIALS?)$|SECRET|PASSW", re.IGNORECASE)

# Parts that hash a bare list of fields: those of its items that people would want to read. The part's own hash stands
# beside them, so an item that is not named here still shows.
_UNNAMED = {
    "scheduler": ("max_num_batched_tokens", "max_num_seqs"),
    "lora": (
        "max_lora_rank",
        "max_loras",
        "fully_sharded_loras",
        "lora_dtype",
        "enable_tower_connector_lora",
        "enable_mixed_moe_lora_format",
        "enable_moe_shared_loras",
        "target_modules",
    ),
}


class _KeyAsked(BaseException):
    """Carries the path that the engine looks for out of its own look-up."""

    def __init__(self, path: Path) -> None:
        self.path = path


def hash_ahead() -> None:
    """Have torch hash its own files and Triton's meanwhile, in its threads: the digests are in every key.

    Its own computation, begun earlier (``prefetchable_cache`` in torch/utils/_functools.py): half a second of a check.
    """
    from torch._inductor import codecache

    codecache.torch_key.prefetch()
    codecache.triton_key.prefetch()


def key_of(path: Path) -> str:
    """The key in a look-up path ``…/torch_aot_compile/<key>/rank_r_dp/model``."""
    return path.parent.parent.name


def identities(name: str, config: Any) -> list[dict[str, str | None]]:
    """What the engine's configuration may say of where the weights come from when it is started with `name`.

    ``ModelConfig.__post_init__`` asks the Hub what the revision of a repository is
    (``vllm.transformers_utils.repo_utils.resolve_revision``): with none asked for, a Hub that answers makes it
    ``"main"``, a Hub that cannot be reached leaves None, and it is in the key. So a repository id without a revision
    has two keys, and with a speculative model that is one too, the two go together: both are asked at one start.
    For a URL of an object store see `_of_object_store`.

    Args:
        name: the model string given to ``vllm serve``.
        config: a ``VllmConfig`` made of local files, which has the revisions as they were asked for.

    Returns:
        values by the names of the factors, as in `named_factors`.
    """
    from huggingface_hub.constants import DEFAULT_REVISION

    asked: dict[str, tuple[str, str | None]] = {"model": (name, config.model_config.revision)}
    draft = getattr(config.speculative_config, "draft_model_config", None)
    named = _of_object_store(name) or {"model.model": name}
    if draft is not None:
        own = draft.model == config.model_config.model  # a head in the model's own checkpoint: MTP
        asked["speculative.draft_model_config"] = (name if own else draft.model, draft.revision)
        named |= {
            factor.replace("model", "speculative.draft_model_config", 1): named[factor] for factor in named if own
        }
    without_hub = {**named, **{f"{part}.revision": revision for part, (_, revision) in asked.items()}}
    with_hub = without_hub | {
        f"{part}.revision": DEFAULT_REVISION
        for part, (model, revision) in asked.items()
        if revision is None and _is_repository(model)
    }
    return [without_hub] if with_hub == without_hub else [with_hub, without_hub]


def _of_object_store(name: str) -> dict[str, str | None] | None:
    """What the engine makes of a URL like ``s3://bucket/model``; None for any other name.

    ``ModelConfig.maybe_pull_model_tokenizer_for_runai`` copies all but the weights into a directory below
    VLLM_ASSETS_CACHE, whose name the URL decides. That directory becomes the model, the URL ``model_weights``, and both
    are in the key. The directory is the serving host's: it is only named here, not made.
    """
    from unittest import mock

    from vllm.transformers_utils import runai_utils

    if not runai_utils.is_runai_obj_uri(name):
        return None
    with mock.patch.object(os, "makedirs"), mock.patch.object(Path, "mkdir"):
        return {"model.model": str(runai_utils.ObjectStorageModel(name).dir), "model.model_weights": name}


def _is_repository(model: str) -> bool:
    """Whether a model string is a repository's id, and no path or URL."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return True


def lookup_path(model: Any, identity: Mapping[str, str | None]) -> Path:
    """Where the engine would look for `model`'s artifact if its configuration had this identity.

    Runs the engine's own look-up up to the point where it opens the file. What the look-up changes (directories,
    environment, the configuration) is put back.

    Args:
        model: a live module of a class decorated with ``support_torch_compile``.
        identity: values of the configuration's fields by the names of their factors, from `identities`.
    """
    import vllm.compilation.decorators as decorators

    config = model.vllm_config

    def ask(_: Any, path: str) -> None:
        raise _KeyAsked(Path(path))

    directory_before = config.compilation_config.local_cache_dir
    environment_before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    look_up_before = decorators._try_load_aot_compiled_fn
    decorators._try_load_aot_compiled_fn = ask
    try:
        with identified(config, identity):
            type(model).__call__(model)
    except _KeyAsked as asked:
        _remove_empty(asked.path.parent.parent)
        return asked.path
    finally:
        decorators._try_load_aot_compiled_fn = look_up_before
        config.compilation_config.local_cache_dir = directory_before
        if environment_before is None:
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = environment_before
    raise RuntimeError("the engine ran the model without looking for an AOT artifact")


@contextmanager
def identified(config: Any, identity: Mapping[str, str | None]) -> Iterator[None]:
    """Have a configuration say for a while that the weights come from elsewhere.

    identity: as for `lookup_path`.
    """
    before = {name: getattr(*_field(config, name)) for name in identity}
    _set(config, identity)
    try:
        yield
    finally:
        _set(config, before)


def _set(config: Any, values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        setattr(*_field(config, name), value)


def _field(config: Any, name: str) -> tuple[Any, str]:
    """The object that holds the field of a factor, and the field's name: ``"model.revision"`` is in model_config."""
    part, *inner, field = name.split(".")
    owner = getattr(config, f"{part}_config")
    for step in inner:
        owner = getattr(owner, step)
    return owner, field


def named_factors(model: Any) -> dict[str, str]:
    """The values that go into the key of a compiled model, by name, as text.

    Args:
        model: as for `lookup_path`.

    ``env.*`` comes from ``vllm.envs.compile_factors``, ``<part>.*`` from what each part's ``compute_hash`` passes to
    ``vllm.config.utils.get_hash_factors``, ``inductor.*`` and ``functorch.*`` from ``get_inductor_factors``. A part
    that names nothing is recorded by its own hash. Long values are digests; what sounds like a secret is withheld.
    """
    import vllm
    import vllm.envs as envs
    from vllm.compilation.compiler_interface import get_inductor_factors

    config = model.vllm_config
    code = model.forward.__code__
    factors = {"code.forward": f"{type(model).__module__}:{model.forward.__qualname__}@{code.co_firstlineno}"}
    factors["vllm.version"] = vllm.__version__
    for name, value in envs.compile_factors().items():
        secret = isinstance(value, str) and _SECRET_NAME.search(name)
        factors[f"env.{name}"] = "(withheld)" if secret else text(value)
    for field in dataclasses.fields(config):
        part = field.name.removesuffix("_config")
        value = getattr(config, field.name)
        if hasattr(value, "compute_hash"):
            factors.update({f"{part}.{k}": text(v) for k, v in _part(part, value).items()})
        elif part == "additional" and value:
            factors["additional_config"] = text(value)
    system, torch_key, inductor, functorch = get_inductor_factors()
    factors.update({f"inductor.system.{k}": text(v) for k, v in _flat(system)})
    factors["torch.key"] = hashlib.sha256(torch_key).hexdigest()
    factors.update({f"inductor.{k}": text(v) for k, v in inductor.items()})
    factors.update({f"functorch.{k}": text(v) for k, v in functorch.items()})
    return factors


def _part(part: str, value: Any) -> dict[str, Any]:
    """The factors of one part of the configuration; those of a part within it are named ``<field>.<factor>``."""
    seen: list[tuple[Any, dict[str, Any]]] = []
    with _watch_hash_factors(lambda config, factors: seen.append((config, factors))):
        digest = value.compute_hash()
    named: dict[str, Any] = {}
    for config, factors in seen:
        inner = "" if config is value else next((f"{k}." for k, v in vars(value).items() if v is config), None)
        if inner is not None:
            named.update({f"{inner}{name}": factor for name, factor in factors.items()})
    if named:
        return named
    return {"hash": digest, **{name: getattr(value, name) for name in _UNNAMED.get(part, ())}}


@contextmanager
def _watch_hash_factors(note: Callable[[Any, dict[str, Any]], None]) -> Iterator[None]:
    """See every result of ``get_hash_factors``, whether a module of vllm.config imported it early or imports it late.

    A part may still add to the result after the call, so it is to be read when the part's hash is done.
    """
    import sys

    import vllm.config.utils as utils

    real = utils.get_hash_factors

    def watching(config: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        result: dict[str, Any] = real(config, *args, **kwargs)
        note(config, result)
        return result

    modules = [m for name, m in list(sys.modules.items()) if name.startswith("vllm.config")]
    holders = [m for m in modules if vars(m).get("get_hash_factors") is real]
    for module in holders:
        module.get_hash_factors = watching  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in holders:
            module.get_hash_factors = real  # type: ignore[attr-defined]


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def text(value: Any) -> str:
    """A factor's value as it is recorded: JSON unless it is a string, a digest if it is longer than `LONG`."""
    written = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return written if len(written) <= LONG else f"sha256:{hashlib.sha256(written.encode()).hexdigest()}"


def _remove_empty(directory: Path) -> None:
    for path in (directory / "inductor_cache", directory):
        try:
            path.rmdir()
        except OSError:
            return
