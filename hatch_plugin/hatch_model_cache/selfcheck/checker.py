"""Runs the check of a subject: one process in the engine's interpreter for each target."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hatch_model_cache.compiling import engine_process, interpreter
from hatch_model_cache.compiling.progress import Progress
from hatch_model_cache.selfcheck.report import GATES, Region, Report, Verdict
from hatch_model_cache.selfcheck.subject import Subject
from model_cache.wheel.manifest import Kernel

NOT_KEPT = 'what it was made from is not kept (`keep = ["ptx"]` in the recipe)'
NOT_SAMPLED = "not in the sample"
NO_LINEAGE = "how it was made was not noted"
NOT_SHIPPED = "no such cubin is in the wheel"


def check(subject: Subject, python: str, progress: Progress, *, sample: int | None = None) -> Report:
    """Pass every kernel of `subject` through the gates, or a sample of them.

    Args:
        python: the engine's interpreter.
        progress: told of the stages.
        sample: so many kernels of each target, evenly spread over the manifest.

    Raises:
        CompileError: if the process fails, or has another torch or Triton than the wheel was made with.
    """
    verdicts: list[Verdict] = []
    regions: list[Region] = []
    for target in dict.fromkeys(kernel.target for kernel in subject.manifest.kernels):
        kernels = [kernel for kernel in subject.manifest.kernels if kernel.target == target]
        sampled = _sampled(kernels, sample)
        able = [kernel for kernel in sampled if not _unable(subject, kernel)]
        found: dict[str, Verdict] = {}
        if able:
            result, checked = _run(subject, able, target, python, progress)
            regions += checked
            found = {verdict.sha256: verdict for verdict in result}
        for kernel in kernels:
            why = NOT_SAMPLED if kernel not in sampled else _unable(subject, kernel)
            verdict = found.get(kernel.sha256) or _not_tried(kernel, str(why))
            verdicts.append(_with_cubin(subject, kernel, verdict))
    strangers = sorted(subject.cubins.keys() - {kernel.sha256 for kernel in subject.manifest.kernels})
    return Report(subject.label, verdicts, regions, strangers)


def _sampled(kernels: Sequence[Kernel], sample: int | None) -> Sequence[Kernel]:
    if sample is None or sample >= len(kernels):
        return kernels
    return [kernels[index * len(kernels) // sample] for index in range(sample)]


def _unable(subject: Subject, kernel: Kernel) -> str | None:
    """Why a kernel cannot be checked at all."""
    if kernel.lineage is None:
        return NO_LINEAGE
    needed = {kernel.lineage.ptx, *([kernel.lineage.source] if kernel.lineage.source else [])}
    return None if needed <= subject.texts.keys() else NOT_KEPT


def _not_tried(kernel: Kernel, why: str) -> Verdict:
    return Verdict(kernel.name, kernel.sha256, kernel.target, reasons=dict.fromkeys(GATES, why))


def _with_cubin(subject: Subject, kernel: Kernel, verdict: Verdict) -> Verdict:
    """A cubin that follows from the PTX proves nothing if another one is shipped in its place."""
    wrong = _misplaced(subject, kernel)
    if wrong is None:
        return verdict
    passed = tuple(gate for gate in verdict.passed if gate != GATES[2])
    reasons = {gate: why for gate, why in verdict.reasons.items() if gate != GATES[2]}
    failures = {**verdict.failures, GATES[2]: wrong}
    return Verdict(verdict.name, verdict.sha256, verdict.target, passed, failures, reasons)


def _misplaced(subject: Subject, kernel: Kernel) -> str | None:
    places = subject.cubins.get(kernel.sha256)
    if places is None:
        return NOT_SHIPPED
    own = (kernel.name, kernel.lineage.warps if kernel.lineage else 0)
    others = sorted(place for place in places if kernel.lineage and place != own)
    return f"lies in the place of {others[0][0]} with {others[0][1]} warps" if others else None


def _run(
    subject: Subject, kernels: Sequence[Kernel], target: str, python: str, progress: Progress
) -> tuple[list[Verdict], list[Region]]:
    regions = [region for region in subject.manifest.regions if region.target == target]
    regions = [region for region in regions if {region.graph, region.wrapper} <= subject.texts.keys()]
    names = {f"def {kernel.name}(".encode() for kernel in kernels}
    regions = [region for region in regions if any(name in subject.texts[region.wrapper] for name in names)]
    with tempfile.TemporaryDirectory(prefix="model-cache-selfcheck-") as scratch:
        directory = Path(scratch)
        texts = directory / "texts"
        for path in (texts, directory / "home", directory / "tmp"):
            path.mkdir()
        for digest, text in subject.texts.items():
            (texts / digest).write_bytes(text)
        job = {
            "task": "selfcheck",
            "engine": subject.manifest.engine.name,
            "versions": {"torch": subject.manifest.engine.torch, "triton": subject.manifest.engine.triton},
            "kernels": [asdict(kernel) for kernel in kernels],
            "regions": [asdict(region) for region in regions],
            "texts": str(texts),
        }
        variables = {
            "TRITON_INTERPRET": "1",
            "TRITON_CACHE_DIR": str(directory / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        }
        label = f"selfcheck {target}"

        def tell(event: Mapping[str, Any]) -> None:
            if "stage" in event:
                progress.stage(label, event["stage"])

        result = engine_process.run(
            python,
            job,
            directory,
            interpreter.scrubbed_environment({}, variables, directory),
            label=label,
            needed=("kernels", "regions"),
            on_event=tell,
        )
    by_sha = {kernel.sha256: kernel for kernel in kernels}
    return list(_verdicts(by_sha, result["kernels"])), [
        Region(target, r["failure"], r["refused"], tuple(r["cut"])) for r in result["regions"]
    ]


def _verdicts(kernels: Mapping[str, Kernel], results: Sequence[Mapping[str, Any]]) -> Iterator[Verdict]:
    for result in results:
        kernel = kernels[result["sha256"]]
        passed = tuple(result["passed"])
        yield Verdict(kernel.name, kernel.sha256, kernel.target, passed, result["failures"], result["reasons"])
