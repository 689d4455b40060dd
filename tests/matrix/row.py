"""One row of the matrix: what was predicted, and what the engine did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hatch_model_cache.checking.verdict import Answer, Observation, Reason, Verdict

from .configurations import Configuration

EXPECTED = {
    Answer.HIT: ("loads it",),
    Answer.MISS: ("does not find it",),
    Answer.UNSAFE: ("loads it", "finds it, cannot load it"),
    Answer.UNKNOWN: ("no look-up",),
}
NOTHING = Observation({}, {}, {}, ())


@dataclass
class Row:
    """A configuration and what came of it.

    Attributes:
        found: for each look-up, whether an artifact lies where the engine looks.
        loaded: for each look-up, whether the engine loaded what it found.
        parts: compiled parts that it loaded.
        advised: whether the advice led to the wheel's key and artifact; None if there was none to apply; text if the
            engine failed with it.
        started: whether a real start was warm; None if there was none.
        error: why the engine gave no answer.
    """

    configuration: Configuration
    verdict: Verdict | None = None
    observation: Observation = NOTHING
    found: list[bool] = field(default_factory=list)
    loaded: list[bool] = field(default_factory=list)
    parts: int = 0
    seconds: float = 0
    advised: bool | str | None = None
    started: bool | None = None
    error: str | None = None

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Those of the verdict."""
        return self.verdict.reasons if self.verdict else ()

    @property
    def engine(self) -> str:
        """What the engine did with the wheel, in a word."""
        if not self.observation.look_ups:
            return "no look-up"
        if self.loads:
            return "loads it"
        return "finds it, cannot load it" if any(self.found) else "does not find it"

    @property
    def loads(self) -> bool:
        """Whether everything was loaded, with compiled parts in it."""
        return bool(self.loaded) and all(self.loaded) and self.parts > 0

    def problems(self) -> Iterator[str]:
        """Every way in which the tool was wrong."""
        title = self.configuration.title
        if self.error is not None or self.verdict is None:
            yield f"{title}: no answer: {self.error}"
            return
        answer = self.verdict.answer
        if self.engine not in EXPECTED[answer]:
            yield f"{title}: predicted {answer}, the engine {self.engine}"
        if self.advised not in (None, True):
            yield f"{title}: the advice does not lead to the wheel ({self.advised})"
        if self.started is not None and self.started is not (answer in (Answer.HIT, Answer.UNSAFE)):
            yield f"{title}: predicted {answer}, the start was {'warm' if self.started else 'cold'}"
        if answer is not Answer.HIT and not self.reasons:
            yield f"{title}: {answer} without a reason"
