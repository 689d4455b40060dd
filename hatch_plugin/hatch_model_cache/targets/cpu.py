"""A kind of CPU as data: what torch and the kernel must say of a host for native code of the build to be right there.

A CPU is not pretended. Inductor compiles its kernels with ``-march=native``, so a build runs on a machine that is the
target; this record says what to compare.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .description import (
    TargetFileError,
    choice_problems,
    expand_sources,
    name_problems,
    text_problems,
    unknown_keys,
    without_source,
)

_FLAG = re.compile(r"[a-z0-9_]+")
_CAPABILITIES = ("AVX2", "AVX512")
_MACHINES = ("x86_64",)


@dataclass(frozen=True)
class CpuTarget:
    """One kind of CPU: every host that torch treats alike."""

    name: str
    """Our name, equal to the file's name: ``x86-64-avx512``."""
    kind: str
    """``cpu``."""
    machine: str
    """As ``os.uname`` says it."""
    vec_isa: str
    """What Inductor vectorizes for: the name of ``torch._inductor.cpu_vec_isa.pick_vec_isa()``."""
    cpu_capability: str
    """What torch's own operators use: ``torch.backends.cpu.get_cpu_capability()``."""
    flags: tuple[str, ...]
    """Of /proc/cpuinfo, which every such CPU has; sorted."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)
    """Field name to the place where its value comes from."""

    @property
    def architecture(self) -> str:
        """What several targets may have in common: nothing, two instruction sets never share native code."""
        return self.name

    def as_dict(self, *, sources: bool = False) -> dict[str, Any]:
        """This target as JSON-ready values; ``sources`` stay out unless asked for, as in the manifest."""
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["flags"] = list(self.flags)
        if sources:
            data["sources"] = dict(self.sources)
        else:
            del data["sources"]
        return data


DATA_FIELDS = ("vec_isa", "cpu_capability", "flags")
"""The fields that describe the CPU: each needs a source."""


def from_mapping(data: Mapping[str, Any], *, where: str) -> CpuTarget:
    """Check ``data`` (a parsed target file of kind ``cpu``) and return it; ``where`` names it in messages.

    Raises:
        TargetFileError: with every problem found.
    """
    known = [f.name for f in dataclasses.fields(CpuTarget)]
    problems = unknown_keys(data, known) + name_problems(data)
    problems += choice_problems("machine", data, _MACHINES)
    problems += text_problems("vec_isa", data)
    problems += choice_problems("cpu_capability", data, _CAPABILITIES)
    problems += _flag_problems(data.get("flags"))
    sources, source_problems = expand_sources(data.get("sources", {}), DATA_FIELDS)
    problems += source_problems or without_source(data, DATA_FIELDS, sources, "")
    if problems:
        raise TargetFileError(f"Target file {where} is malformed:", problems)
    values = {key: data[key] for key in known if key not in ("flags", "sources")}
    return CpuTarget(**values, flags=tuple(data["flags"]), sources=sources)


def _flag_problems(value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        return [f"`flags`: must be a list of flags, not {value!r}"]
    wrong = [item for item in value if not isinstance(item, str) or not _FLAG.fullmatch(item)]
    if wrong:
        return [f"`flags`: {item!r} is no flag of /proc/cpuinfo" for item in wrong]
    return [] if value == sorted(set(value)) else ["`flags`: must be sorted, each once"]
