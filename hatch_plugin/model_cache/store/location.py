"""Where the engine's cache root is, decided as the engine decides it. On the plug-in's fast path."""

from __future__ import annotations

import os
from collections.abc import Mapping

from model_cache.errors import UsageError


def cache_root(explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The absolute path of the cache root.

    explicit (`--root`), else VLLM_CACHE_ROOT, else XDG_CACHE_HOME/vllm, else ~/.cache/vllm: the order of vllm
    0.33.0, vllm/envs.py. Raises UsageError when only HOME could tell and HOME is no place to write to (the
    random user ids of some container platforms have HOME=/).
    """
    if explicit is not None:
        chosen = explicit
    elif "VLLM_CACHE_ROOT" in environ:
        chosen = environ["VLLM_CACHE_ROOT"]
    elif "XDG_CACHE_HOME" in environ:
        chosen = f"{environ['XDG_CACHE_HOME']}/vllm"
    else:
        chosen = "~/.cache/vllm"
    if not chosen:
        raise UsageError("the cache root is an empty path; set VLLM_CACHE_ROOT or give --root")
    path = os.path.expanduser(chosen)  # noqa: PTH111
    if chosen.startswith("~") and (path.startswith("~") or os.path.expanduser("~") in ("/", "")):  # noqa: PTH111
        raise UsageError("there is no home directory to hold the cache root; set VLLM_CACHE_ROOT or give --root")
    return os.path.abspath(path)  # noqa: PTH100
