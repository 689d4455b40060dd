"""Models that are served from an object store: where the host keeps what lies beside the weights is in the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

SCHEMES = ("s3://", "gs://", "az://")
"""vllm/transformers_utils/runai_utils.py, vllm 0.31 to 0.33: SUPPORTED_SCHEMES."""

VARIABLE = "VLLM_ASSETS_CACHE"


def environment_problem(served_as: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What is wrong with the recipe's `VLLM_ASSETS_CACHE`; None if nothing is, or if no name is a URL.

    vLLM copies config.json and the like into a directory below it, and the path of that directory is in the key. The
    default is below HOME, so another user or image would have another key.
    """
    urls = [name for name in served_as if name.lower().startswith(SCHEMES)]
    if not urls:
        return None
    given = environment.get(VARIABLE)
    if given is None:
        return (
            f"is required for {urls[0]!r}: the directory that the engine copies the model's small files into is in its "
            "key, and is below HOME by default. Name one here, and set the same when serving."
        )
    if not PurePosixPath(given).is_absolute() or ".." in PurePosixPath(given).parts:
        return f"must be an absolute path, not {given!r}: it is in the engine's key."
    return None
