"""The shortest change on the serving side that takes a difference from a wheel away.

A change is written so that it can be done as it stands: ``give --max-num-seqs 1024``, ``leave out --block-size``,
``set NAME=value``, ``unset NAME``, ``serve it as org/model``; several are joined by ``" and "``. What needs another
wheel or another installation says so in words.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from model_cache.wheel.manifest import Manifest

GPU = "build a wheel for this GPU"
CHECKPOINT = "build a wheel with the option `checkpoint`, of these weights"
AND = " and "
PLACE = "code.directory"
"""The factor that says where the engine's packages lie; only a key of vLLM's piecewise path has it."""

_READ_AT_IMPORT = {"functorch.error_on_custom_op_aliasing": "CI"}
"""Factors that torch 2.13.0 takes from a variable of another name (torch._functorch.config)."""

_WAY, _OF_WAY = "env.VLLM_USE_AOT_COMPILE", ("code", "functorch")
"""The factor that turns that path on and off, and the parts of the key that follow from it."""

Difference = tuple[str, str | None, str | None]
"""A factor, the wheel's value and the host's; None: it has none."""


@dataclass(frozen=True)
class CommandLine:
    """An engine's arguments and environment, and what its parser knows.

    Attributes:
        arguments: what follows ``vllm serve``.
        environment: the engine's variables.
        flags: ``<part>.<field>`` → the flag that sets it, ``*.<field>`` → the flag of that name, ``<part>`` → the flag
            that takes the whole part.
        options: every spelling of a flag → its longest.
    """

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def given(self, arguments: Sequence[str]) -> dict[str, str | None]:
        """Flags in `arguments` with their values (None: a flag without one), in the parser's longest spelling."""
        found: dict[str, str | None] = {}
        flag = None
        for word in arguments:
            if word.startswith("-") and not _is_number(word):
                written, equals, value = word.partition("=")
                if written.startswith("-O") and len(written) > 2:
                    written, value, equals = "-O", written[2:] or value, "="
                name, dot, rest = written.partition(".")
                name = name.replace("_", "-") if name.startswith("--") else name
                flag = self.options.get(name, name) + dot + rest
                found[flag] = value if equals else None
            elif flag is not None:
                before = found[flag]
                found[flag] = word if before is None else f"{before} {word}"
        return found


def changes(
    differences: Sequence[Difference], factors: Collection[str], manifest: Manifest, host: CommandLine
) -> dict[str, str]:
    """The change for every differing factor; empty where it follows from another one, or there is none to name.

    Args:
        differences: what differs.
        factors: names of all that is in the key.
        manifest: of the wheel.
        host: how the engine is started.
    """
    ours, theirs = host.given(manifest.serve.arguments), host.given(host.arguments)
    found: dict[str, str] = {}
    open_factors = []
    other_way = any(factor == _WAY for factor, _, _ in differences)
    for factor, wheel, here in differences:
        if other_way and factor.partition(".")[0] in _OF_WAY:
            change: str | None = ""
        elif factor == PLACE and wheel and here:
            change = (
                f"build with `packages-directory = {json.dumps(here)}`, or install the engine's packages in {wheel}"
            )
        else:
            change = _outside(factor, manifest, host)
        if change is None:
            change = _flag(factor, wheel, ours, theirs, host.flags)
        if change is None:
            open_factors.append(factor)
        found[factor] = change or ""
    if open_factors:
        # No flag sets these alone: they follow from others, so the command line must become the build's.
        done = {_named(change) for change in found.values()}
        rest = [c for c in _command_line(ours, theirs, host) if _named(c) not in done]
        ignored = _ignored(host.flags, factors)
        likely = [c for c in rest if _named(c) not in ignored]
        rest = likely if likely or any(found.values()) else rest
        found[open_factors[0]] = AND.join(rest)
    return found


def _outside(factor: str, manifest: Manifest, host: CommandLine) -> str | None:
    """The change of a factor that no flag sets; None if it may be one that a flag sets."""
    part, _, name = factor.partition(".")
    if part == "env":
        return _variable(name, manifest, host) or ""
    if factor == "model.model":
        [name] = host.arguments[:1] or [""]
        if "://" in name and name in manifest.model.served_as:  # the key has the directory of its small files
            return _variable("VLLM_ASSETS_CACHE", manifest, host)
        return f"serve it as {' or '.join(manifest.model.served_as)}"
    if factor == "inductor.system.device.name":
        return GPU
    if factor == "model.word_embeddings_untied_by_checkpoint":  # of vllm 0.33.0: only the headers tell
        return CHECKPOINT
    if part in ("torch", "code", "functorch", "vllm", "inductor"):
        variable = _READ_AT_IMPORT.get(factor) or (name.rpartition(".")[2].upper() if part == "inductor" else None)
        variable = variable and _variable(variable, manifest, host)
        if variable:
            return variable
        return f"install {manifest.engine.name} {manifest.engine.version} with torch {manifest.engine.torch}"
    return None


def _variable(name: str, manifest: Manifest, host: CommandLine) -> str | None:
    """The change of an environment variable, or of torch's for the Inductor setting `name`; None if none is set."""
    for variable in (name, f"TORCHINDUCTOR_{name}"):
        wanted = manifest.serve.environment.get(variable)
        if wanted is not None:
            return f"set {variable}={wanted}"
        if variable in host.environment:
            return f"unset {variable}"
    return None


def _flag(
    factor: str,
    wheel: str | None,
    ours: Mapping[str, str | None],
    theirs: Mapping[str, str | None],
    flags: Mapping[str, str],
) -> str | None:
    """The change of the flag that sets this factor; None if none does."""
    flag = flags.get(factor) or flags.get(f"*.{factor.partition('.')[2] or factor}")
    if flag is None:
        return None
    off = _off(flag)
    for name in (flag, *off):
        if name in ours:
            return _give(name, ours[name])
    for name in (flag, *off):
        if name in theirs:
            return f"leave out {name}"
    # set by neither: a default that depends on something else
    if wheel is None or wheel.startswith("sha256:") or wheel == "null" or "." not in factor:
        return None
    if wheel in ("true", "false"):
        return f"give {flag if wheel == 'true' else off[0]}"
    return _give(flag, wheel)


def _ignored(flags: Mapping[str, str], factors: Collection[str]) -> set[str]:
    """Flags of fields that the engine leaves out of the key of a part whose other fields it names."""
    parts = {factor.partition(".")[0] for factor in factors} - {"vllm"}
    pairs = ((field.partition("."), flag) for field, flag in flags.items())
    return {flag for (part, dot, name), flag in pairs if dot and part in parts and f"{part}.{name}" not in factors}


def _command_line(ours: Mapping[str, str | None], theirs: Mapping[str, str | None], host: CommandLine) -> list[str]:
    """What makes the flags those of the build; of flags that the engine's configuration does not know, nothing."""
    known = set(host.flags.values())
    known |= {off for flag in known for off in _off(flag)}
    found = [_give(flag, value) for flag, value in ours.items() if flag not in theirs or theirs[flag] != value]
    return found + [f"leave out {f}" for f in theirs if f not in ours and f.partition(".")[0] in known]


def _give(flag: str, value: str | None) -> str:
    return f"give {flag}" if value is None else f"give {flag} {shlex.quote(value) if _json_like(value) else value}"


def _off(flag: str) -> list[str]:
    """What turns a flag off: ``--no-x``, and for ``--enable-x`` also ``--disable-x``."""
    name = flag.removeprefix("--")
    return [f"--no-{name}", *([f"--disable-{name.removeprefix('enable-')}"] if name.startswith("enable-") else [])]


def _named(change: str) -> str:
    """The flag that a change is about; the same for its opposite."""
    word = next((w for w in change.split() if w.startswith("--")), change)
    return word.replace("--no-", "--", 1).replace("--disable-", "--enable-", 1)


def _json_like(value: str) -> bool:
    return value.startswith(("{", "[")) or " " in value


def _is_number(word: str) -> bool:
    try:
        json.loads(word)
    except ValueError:
        return False
    return True
