"""What became of every kernel: the gates that it passed, what failed, and why something was not tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from model_cache.errors import ModelCacheError

GATES = ("source-checked", "ptx-checked", "cubin-derived")
"""In the order of a kernel's way; a kernel that passed all of them counts as checked."""


@dataclass(frozen=True)
class Verdict:
    """One kernel. passed: gates; failures: gate → what is wrong; reasons: gate → why it was not tried."""

    name: str
    sha256: str
    target: str
    passed: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def checked(self) -> bool:
        """Whether it passed every gate."""
        return not self.failures and set(self.passed) == set(GATES)

    def __str__(self) -> str:
        """The gates' words, or what is wrong, or ``unchecked`` with the reason."""
        words = [f"FAILED {gate}: {why}" for gate, why in self.failures.items()]
        words += self.passed
        missing = {why: [g for g, w in self.reasons.items() if w == why] for why in self.reasons.values()}
        words += [f"unchecked: {why} ({', '.join(gates)})" for why, gates in missing.items()]
        return ", ".join(words)


@dataclass(frozen=True)
class Region:
    """One region. failure: what is wrong; refused: why it could not be run; cut: library calls that were made up."""

    target: str
    failure: str | None
    refused: str | None
    cut: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The answer for one wheel. strangers: cubins in it that its manifest does not describe."""

    label: str
    verdicts: Sequence[Verdict]
    regions: Sequence[Region]
    strangers: Sequence[str] = ()

    @property
    def failed(self) -> list[str]:
        """Everything that is wrong, one line each."""
        lines = [
            f"{v.name} ({v.sha256[:12]}): {gate}: {why}" for v in self.verdicts for gate, why in v.failures.items()
        ]
        return [*lines, *(f"cubin {sha[:12]}: the manifest describes no such kernel" for sha in self.strangers)]

    @property
    def counts(self) -> dict[str, int]:
        """How many kernels there are, passed each gate, are unchecked, and failed."""
        passed = Counter(gate for verdict in self.verdicts for gate in verdict.passed)
        failed = sum(1 for verdict in self.verdicts if verdict.failures)
        checked = sum(1 for verdict in self.verdicts if verdict.checked)
        return {
            "kernels": len(self.verdicts),
            **{gate: passed[gate] for gate in GATES},
            "checked": checked,
            "unchecked": len(self.verdicts) - checked - failed,
            "failed": failed,
        }

    def summary(self) -> str:
        """The counts in one line."""
        counts = self.counts
        gates = ", ".join(f"{counts[gate]} {gate}" for gate in GATES)
        return f"{counts['kernels']} kernels: {gates}; {counts['unchecked']} unchecked, {counts['failed']} failed"

    def problem(self, label: str) -> ModelCacheError | None:
        """What is to be said of `label` if a kernel failed, or none could be checked."""
        if self.failed:
            return ModelCacheError(f"{label}: the check of the kernels failed", self.failed)
        if not self.counts["checked"]:
            return ModelCacheError(f"{label}: no kernel could be checked", [self.summary()])
        return None

    def lines(self) -> list[str]:
        """For people: every kernel with its verdict, what was cut, and the counts."""
        found = [f"{v.name} ({v.sha256[:12]}, {v.target}): {v}" for v in self.verdicts]
        cut = Counter(name for region in self.regions for name in set(region.cut))
        found += [
            f"library call made up in {count} of {len(self.regions)} regions: {name}" for name, count in cut.items()
        ]
        return [*found, self.summary()]

    def as_dict(self) -> dict[str, object]:
        """Plain values."""
        verdicts = [{**asdict(verdict), "checked": verdict.checked} for verdict in self.verdicts]
        return {
            "subject": self.label,
            "counts": self.counts,
            "kernels": verdicts,
            "regions": [asdict(region) for region in self.regions],
            "failed": self.failed,
        }
