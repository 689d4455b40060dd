"""One adapter per engine: everything that is true of an engine's version and not of another's.

An adapter is a module that imports nothing but the standard library until one of its functions is called, so that the
build side can ask it for facts. It has:

- ``VERSIONS``: the engine's versions it was checked on; of those not in `SERVERS`, with the kinds of targets of each;
- ``environment(cache_root)``: variables that send the engine's cache there, and are in no key;
- ``rules(version)``: what must be equal although the engine's key does not hold it (`rule.Rule`);
- ``expected_ranks(arguments)``: names of the per-rank directories an engine started with these arguments looks for;
- of those in `SERVERS`, ``COMMAND``: the program whose ``serve`` starts it;
- ``KIND``: of the targets it runs on, ``"gpu"`` or ``"cpu"``;
- ``SERVER_ONLY``: arguments of its ``serve`` that are in no key and belong to one host, not into a recipe;
- ``pins(target, arguments)``: defaults that depend on the target, to be spelled out in a recipe;
- ``running``: a module that asks a running engine for what a look-up depends on; see `vllm_running`;
- and, inside the engine's interpreter: ``versions``, ``host_answers``, ``parse``, ``ranks``, ``create_config``,
  ``architectures``, ``compile_rank``; of those in `SERVERS`, ``describe_rank``, ``look_up_keys``, ``why_nothing``,
  ``flags`` and ``options``. See `vllm` for what they take and return.
"""

from __future__ import annotations

import importlib
from types import ModuleType

SERVERS = ("vllm", "vllm-cpu")
"""Engines with a command line that serves a model, and a look-up of their own that can be asked for."""

NAMES = (*SERVERS, "torch")
"""Engines that a recipe can name."""

_MODULES = {"torch": "torch_compile"}
"""Adapters whose module is not named like the engine."""


def adapter(engine: str) -> ModuleType:
    """The adapter of an engine in `NAMES`."""
    if engine not in NAMES:
        raise ValueError(f"no adapter for engine {engine!r}; there is one for {', '.join(NAMES)}")
    return importlib.import_module(f"{__name__}.{_MODULES.get(engine, engine.replace('-', '_'))}")


def kinds(engine: str, version: str) -> tuple[str, ...]:
    """Kinds of targets that a version of an engine was checked on; none for a version that is not known."""
    found = adapter(engine)
    if version not in found.VERSIONS:
        return ()
    return (found.KIND,) if engine in SERVERS else tuple(found.VERSIONS[version])


def known(*names: str) -> list[str]:
    """``name==version`` of every version of these engines, or of all, that has an adapter."""
    return [f"{name}=={version}" for name in names or NAMES for version in sorted(adapter(name).VERSIONS)]
