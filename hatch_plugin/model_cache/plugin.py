"""The vLLM general plug-in: deploy installed wheels that fit this host before the engine looks for its cache.

vLLM calls `register` once in each of its processes (vllm 0.33.0, vllm/plugins/__init__.py,
`load_general_plugins`), and an exception from it would end that process, so everything is caught here. Imports are
kept inside: a process that has nothing to do must not pay for them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing costs more than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

LOGGER = "vllm.model_cache"
"""A child of vLLM's own logger (vllm 0.33.0, vllm/logger.py: "vllm" has the handler), so that its lines appear in
the server's log without any change to its configuration."""

DISABLE = "MODEL_CACHE_DISABLE"


def register() -> None:
    """Deploy what fits; return within about 10 s, never raise (but KeyboardInterrupt and SystemExit)."""
    try:
        if not turned_off(os.environ):
            _run()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        _say(f"nothing deployed: {type(error).__name__}: {error}", alarm=True)


def turned_off(environ: Mapping[str, str]) -> bool:
    """Whether the plug-in does nothing in an engine that is started in this environment."""
    return environ.get(DISABLE, "") not in ("", "0")


def _run() -> None:
    from model_cache.wheel import discovery

    scan = discovery.scan(also=(*discovery.ENGINES, "torch", "triton"))
    root = _root(installed=bool(scan.wheels))
    if root is None:
        return
    from model_cache.engine import stamp

    identity = stamp.identity(scan.others)
    _watch(root)
    messages = stamp.read(root, identity, scan.wheels)
    if messages is None:
        from model_cache.engine import startup

        startup.deploy_installed(scan.wheels, root, identity, _say)
    elif _is_main_process():
        for message in messages:
            _say(message, alarm=True)


def _root(*, installed: bool) -> str | None:
    """The cache root; None when nothing is to be done there: no wheel is installed, and nothing was deployed."""
    from model_cache.errors import UsageError
    from model_cache.store import location
    from model_cache.wheel.names import RESERVED

    try:
        root = location.cache_root()
    except UsageError:
        if installed:
            raise
        return None
    return root if installed or _holds_states(f"{root}/{RESERVED}") else None


def _holds_states(directory: str) -> bool:
    try:
        return any(name.endswith(".json") for name in os.listdir(directory))
    except OSError:
        return False


def _watch(root: str) -> None:
    """Record the engine's look-ups; the deploy must not depend on it."""
    try:
        from model_cache.engine import on_import

        on_import.call(lambda module: _record(module, root))
    except Exception as error:
        _say(f"look-ups are not recorded: {type(error).__name__}: {error}", alarm=True)


def _record(module: ModuleType, root: str) -> None:
    from model_cache.engine import mends, on_import, pieces, watch

    mends.wrap(module, root, _say)  # first, so that what is recorded is what came of it
    watch.wrap(module, root, _say)
    on_import.call(lambda backends: pieces.wrap(backends, root, _say), pieces.MODULE)


def _is_main_process() -> bool:
    """Whether this is the process that the user started: only that one repeats what is known already."""
    module = sys.modules.get("multiprocessing.process")
    return module is None or module.parent_process() is None


def _say(message: str, *, alarm: bool = False) -> None:
    """Tell the server's log. What cannot be told is lost: a closed stderr is no reason to end a server."""
    try:
        _write(message, alarm=alarm)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: S110
        pass


def _write(message: str, *, alarm: bool) -> None:
    import logging

    from model_cache.wheel.names import printable

    logger = logging.getLogger(LOGGER)
    if logger.hasHandlers():
        logger.log(logging.WARNING if alarm else logging.INFO, "model-cache: %s", printable(message))
    else:  # vllm 0.33.0 loads plug-ins in `vllm serve` before it configures its logging; a line must not be lost
        sys.stderr.write(f"model-cache: {printable(message)}\n")
