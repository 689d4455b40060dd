"""One process that checks the kernels of one wheel."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatch_model_cache.compile.engines import interpreter
from hatch_model_cache.compile.pretend.patches import Patches

from . import assembler, gates, graph, inputs
from .ptx import UnsupportedError
from .ptx.program import Program, parse
from .triton_interpreter import Bounds, mend
from .wrapper import Config, Launch, Wrappers

GATES = ("source-checked", "ptx-checked", "cubin-derived")

_FLAG = re.compile(
    r"-lineinfo|-suppress-debug-info|-v|-g|--fmad=false|--regAllocOptLevel=\d|--opt-level|\d|--gpu-name=sm_\w+"
)
"""What Triton gives to ptxas. The flags come from the wheel, and nothing else is passed on."""

LAUNCHES = 2
"""So many launches of one cubin in each case are run again as PTX; a case gives one for each place in a model."""

INDICES = inputs.CASES[1]
"""In the first launch of this case indices are given values that are out of range: it has several tokens."""


@dataclass
class _Kernel:
    """A kernel under check. refused: its PTX cannot be run; launches: how many of each case were; passed: gates;
    failures: gate → what is wrong; reasons: gate → why it was not tried."""

    record: Mapping[str, Any]
    program: Program | None = None
    refused: bool = False
    launches: Counter[inputs.Case] = field(default_factory=Counter)
    passed: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def lineage(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.record["lineage"]
        return found


class _Texts:
    """What kernels were made from, by SHA-256, and checked against it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __getitem__(self, digest: str) -> str:
        data = (self._directory / digest).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{digest}: is not what its name says")
        return data.decode()


def check(job: Mapping[str, Any], stage: Callable[[str], None]) -> dict[str, Any]:
    """Pass every kernel of `job` through the gates.

    Args:
        job: ``engine`` (its name), ``versions`` (of torch and triton that made the kernels), ``kernels`` (records of
            the manifest that have a lineage, all of one target), ``regions`` (of that target), ``texts`` (directory
            with what they refer to).
        stage: told what is being done.

    Returns:
        ``kernels``: of each ``sha256``, ``passed``, ``failures`` and ``reasons``; ``regions``: of each ``failure``,
        ``refused`` and ``cut``.

    Raises:
        RuntimeError: if torch or Triton here is of another version.
    """
    stage("import torch and Triton")
    here = interpreter.versions(job["engine"], "")
    for name, wanted in job["versions"].items():
        if here[name] != wanted:
            raise RuntimeError(f"the kernels were made with {name} {wanted}, here is {here[name]}")
    texts = _Texts(Path(job["texts"]))
    kernels = [_Kernel(record) for record in job["kernels"]]
    stage("assemble the PTX again")
    for kernel in kernels:
        _derive(kernel, texts)
    patches, bounds = Patches(), Bounds()
    mend(patches, bounds)
    check_of_kernels = _Interpreted(kernels, texts, patches, bounds)
    results = []
    for number, region in enumerate(job["regions"]):
        stage(f"region {number + 1} of {len(job['regions'])}")
        results.append(check_of_kernels.region(region))
    patches.undo()
    return {
        "kernels": [
            {
                "sha256": kernel.record["sha256"],
                "passed": [gate for gate in GATES if gate in kernel.passed],
                "failures": kernel.failures,
                "reasons": kernel.reasons,
            }
            for kernel in kernels
        ],
        "regions": [{"failure": r.failure, "refused": r.refused, "cut": list(r.cut)} for r in results],
    }


def _derive(kernel: _Kernel, texts: _Texts) -> None:
    lineage = kernel.lineage
    strange = [flag for flag in lineage["flags"] if not _FLAG.fullmatch(flag)]
    if strange:
        kernel.reasons[GATES[2]] = f"ptxas was given {strange[0]!r:.80}"
        return
    try:
        cubin = assembler.assemble(texts[lineage["ptx"]], lineage["flags"], lineage["ptxas"])
    except assembler.OtherAssemblerError as error:
        kernel.reasons[GATES[2]] = str(error)
    except ValueError as error:
        kernel.failures[GATES[2]] = str(error)
    else:
        if hashlib.sha256(cubin).hexdigest() == kernel.record["sha256"]:
            kernel.passed.add(GATES[2])
        else:
            kernel.failures[GATES[2]] = f"ptxas {lineage['ptxas']} makes another cubin of its PTX"


class _Interpreted:
    """The two gates in which kernels run."""

    def __init__(self, kernels: list[_Kernel], texts: _Texts, patches: Patches, bounds: Bounds) -> None:
        self._texts = texts
        self._kernels: dict[tuple[str, Config], list[_Kernel]] = defaultdict(list)
        self._by_source: dict[str, list[_Kernel]] = defaultdict(list)
        configs: dict[str, list[Config]] = defaultdict(list)
        for kernel in kernels:
            source = kernel.lineage["source"]
            if source is None:
                for gate in GATES[:2]:
                    kernel.reasons[gate] = "not generated by Inductor"
                continue
            config = _config(kernel.lineage)
            if config not in configs[source]:
                configs[source].append(config)
            self._kernels[source, config].append(kernel)
            self._by_source[source].append(kernel)
            for gate in GATES[:2]:
                kernel.reasons[gate] = "no region launches it"
        self._regions = gates.Regions(Wrappers(patches, bounds, configs), graph.Libraries(patches))

    def region(self, region: Mapping[str, Any]) -> gates.RegionResult:
        """Check one region and every kernel that it launches."""
        texts = self._texts[region["graph"]], self._texts[region["wrapper"]]
        result = self._regions.check(region, texts, self._launched)
        for source in self._by_source:
            if self._texts[source].strip("\n") in texts[1]:
                for kernel in self._by_source[source]:
                    _note(kernel, result, launched=source in result.sources)
        return result

    def _launched(self, launch: Launch, case: inputs.Case) -> None:
        for kernel in self._kernels[launch.source, launch.config]:
            if kernel.launches[case] < LAUNCHES and GATES[1] not in kernel.failures:
                indices = case == INDICES and not kernel.launches[case]
                self._check_ptx(kernel, launch, indices=indices)
                kernel.launches[case] += 1

    def _check_ptx(self, kernel: _Kernel, launch: Launch, *, indices: bool) -> None:
        gate, shared = GATES[1], kernel.record["shared"]
        if kernel.refused:
            return
        try:
            if kernel.program is None:
                kernel.program = parse(self._texts[kernel.lineage["ptx"]])
            problem = gates.check_launch(kernel.program, launch, shared)
            if problem is None and indices:
                problem = gates.check_indices(kernel.program, launch, shared)
        except UnsupportedError as error:
            kernel.refused = True
            kernel.passed.discard(gate)
            kernel.reasons[gate] = str(error)
            return
        kernel.reasons.pop(gate, None)
        if problem is None:
            kernel.passed.add(gate)
        else:
            kernel.passed.discard(gate)
            kernel.failures[gate] = problem


def _note(kernel: _Kernel, result: gates.RegionResult, *, launched: bool) -> None:
    """What the result of a region says of a kernel in its wrapper."""
    gate = GATES[0]
    if result.failure:
        kernel.passed.discard(gate)
        kernel.reasons.pop(gate, None)
        kernel.failures[gate] = f"its region: {result.failure}"
    elif result.refused and gate not in kernel.passed:
        kernel.reasons[gate] = result.refused
    elif launched and gate not in kernel.failures:
        kernel.passed.add(gate)
        kernel.reasons.pop(gate, None)


def _config(lineage: Mapping[str, Any]) -> Config:
    return Config(tuple(lineage["config"].items()), lineage["warps"], lineage["stages"])
