"""The gates that need the kernels to run: a region against eager execution, and PTX against the interpreted source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import comparison, graph, inputs
from .ptx import FaultError, TrapError, machine
from .ptx.memory import GlobalMemory
from .ptx.program import Program
from .triton_interpreter import OutOfBoundsError, RefusedError
from .wrapper import Launch, Wrappers, restore, storages

FAR = 1 << 24
"""An index that is out of range for every tensor here."""

PLACES = 8
"""So many places of an index are given a value that is out of range, one after the other."""


@dataclass
class RegionResult:
    """What became of one region. failure: what is wrong; refused: why it could not be run; cut: library calls that were
    made up; sources: SHA-256 of the kernels that it launched."""

    failure: str | None = None
    refused: str | None = None
    cut: tuple[str, ...] = ()
    sources: set[str] = field(default_factory=set)


class Regions:
    """Runs wrappers and graphs of regions on the same inputs."""

    def __init__(self, wrappers: Wrappers, libraries: graph.Libraries) -> None:
        self._wrappers = wrappers
        self._libraries = libraries

    def check(
        self, region: Mapping[str, Any], texts: tuple[str, str], on_launch: Callable[[Launch, inputs.Case], None]
    ) -> RegionResult:
        """Compare a region's wrapper with its graph, in every case of `inputs`.

        Args:
            region: as recorded.
            texts: its graph and its wrapper.
            on_launch: hears of every launch, and of the case.
        """
        result = RegionResult()
        ours: list[Exception] = []
        case = inputs.CASES[0]

        def heard(launch: Launch) -> None:
            result.sources.add(launch.source)
            try:
                on_launch(launch, case)
            except Exception as error:
                ours.append(error)
                raise

        self._wrappers.on_launch = heard
        self._libraries.stand_for(region["calls"])
        try:
            run = _Run(self._libraries, region, graph.load(texts[0]), self._wrappers.load(texts[1]))
            ranges = inputs.ranges(region["inputs"], run.eager)
            for number, case in enumerate(inputs.CASES):
                values = inputs.make(region["inputs"], case, number, ranges)
                failure, result.cut = run.compare(values, case.tokens)
                if failure:
                    result.failure = f"with {case.tokens} tokens: {failure}"
                    break
        except Exception as error:
            if ours:
                raise
            # Whatever generated code raises is an answer about that code. NotImplementedError is how torch and Triton's
            # interpreter say that they lack something, which makes a region unchecked, never checked.
            cause = _cause(error)
            if isinstance(cause, (RefusedError, NotImplementedError)):
                result.refused = str(cause) or type(cause).__name__
            else:
                result.failure = f"{type(cause).__name__}: {cause}"
        finally:
            self._wrappers.on_launch = None
        return result


Results = tuple[list[Any], tuple[str, ...]]
"""What a run returned, what it changed among its inputs, and what went into library calls; the names of those calls."""


class _Run:
    def __init__(
        self,
        libraries: graph.Libraries,
        region: Mapping[str, Any],
        eager: Callable[..., Any],
        wrapper: Callable[..., Any],
    ) -> None:
        self._libraries = libraries
        self._calls = region["calls"]
        self._eager = eager
        self._wrapper = wrapper

    def compare(self, values: Sequence[Any], tokens: int) -> tuple[str | None, tuple[str, ...]]:
        """How the wrapper's results differ from the graph's, or None; the library calls that were cut."""
        import torch

        ours, cuts = self._results(lambda copies: self._wrapper(list(copies)), values, tokens)
        theirs, names = self.eager(values, tokens)
        exact, _ = self.eager(values, tokens, wide=True)
        if cuts != names:
            return f"other library calls: {', '.join(cuts)} instead of {', '.join(names)}", cuts
        if not len(ours) == len(theirs) == len(exact):
            return f"{len(ours)} results instead of {len(theirs)}", cuts
        for place, (found, wanted, fine) in enumerate(zip(ours, theirs, exact, strict=True)):
            if isinstance(found, torch.Tensor) and (problem := comparison.close_to_exact(found, wanted, fine)):
                return f"result {place}: {problem}", cuts
        return None, cuts

    def eager(self, values: Sequence[Any], tokens: int = inputs.FEW.tokens, *, wide: bool = False) -> Results:
        """The graph's results; in float32 with `wide`."""
        return self._results(lambda copies: self._eager(*copies), values, tokens, wide=wide)

    def _results(
        self, function: Callable[[list[Any]], Any], values: Sequence[Any], tokens: int, *, wide: bool = False
    ) -> Results:
        import torch

        cuts = graph.Cuts(self._calls, tokens)
        copies = [_widened(value) if wide else value for value in _copies(values)]
        with torch.no_grad(), self._libraries.cut(cuts), graph.on_cpu(wide=wide):
            results = function(copies)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        return [*results, *copies, *cuts.inputs], tuple(cuts.names)


def _widened(value: Any) -> Any:
    import torch

    narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if narrow else value


def _copies(values: Sequence[Any]) -> list[Any]:
    import torch

    return [
        torch.empty_strided(v.shape, v.stride(), dtype=v.dtype).copy_(v) if isinstance(v, torch.Tensor) else v
        for v in values
    ]


def check_launch(program: Program, launch: Launch, shared: int) -> str | None:
    """Run the PTX on the data of a launch; how its results differ from the interpreter's, or None.

    Raises:
        UnsupportedError: if it has an instruction that the machine does not know.
    """
    try:
        left = run_ptx(program, launch, launch.before, shared)
    except FaultError as fault:
        return f"fault: {fault}"
    return _difference(launch.arguments, left, launch.after)


def run_ptx(program: Program, launch: Launch, contents: Mapping[int, Any], shared: int) -> dict[int, Any]:
    """The storages of a launch as the PTX leaves them when they hold `contents`."""
    import torch

    places = list(contents)
    memory = GlobalMemory([contents[place].numpy() for place in places])
    base = dict(zip(places, memory.addresses, strict=True))
    arguments = []
    for value in launch.arguments:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage().data_ptr()
            arguments.append(base[storage] + value.storage_offset() * value.element_size())
        else:
            arguments.append(int(value))
    scratch = len(program.parameters) - len(arguments)  # Triton's own, two at the end, which these kernels do not use
    machine.run(program, launch.grid, [*arguments, *[0] * scratch], memory, shared)
    return {place: torch.from_numpy(memory.buffer(number)) for number, place in enumerate(places)}


def _difference(arguments: Sequence[Any], left: Mapping[int, Any], wanted: Mapping[int, Any]) -> str | None:
    """How the tensors among the arguments differ: as the PTX has left them, and as the interpreter has."""
    import torch

    for number, value in enumerate(arguments):
        if isinstance(value, torch.Tensor):
            place = value.untyped_storage().data_ptr()
            problem = comparison.same_result(_view(left[place], value), _view(wanted[place], value))
            if problem:
                return f"argument {number}: {problem}"
    return None


def _view(data: Any, like: Any) -> Any:
    """Bytes of a storage as the tensor that lay on it."""
    import torch

    typed = torch.empty(0, dtype=like.dtype)
    return typed.set_(data.clone().untyped_storage(), like.storage_offset(), like.size(), like.stride())


def check_indices(program: Program, launch: Launch, shared: int) -> str | None:
    """Give every index of a launch values that are out of range: source and PTX must both stop, or neither. Where the
    source asserts a range, they must leave the same at both of its ends, and the assertions of both must stop them at
    the values next to these, in every place (`PLACES`): a thread has an assertion of its own for each of its elements.

    Returns how they disagree, or None.
    """
    import torch

    kept = storages(launch.arguments)
    try:
        for value in launch.arguments:
            index = isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64)
            if not index or not value.numel():
                continue
            probe = _Probe(program, launch, shared, value)
            for far in (FAR, -FAR):
                if problem := probe.disagreement(far):
                    return problem
                if probe.source_stops(far) == _ASSERTION:
                    inside, outside = probe.edge(far)
                    tried = [(inside, -1), *((outside, place) for place in range(min(PLACES, value.numel())))]
                    if problem := next(filter(None, (probe.disagreement(*one) for one in tried)), None):
                        return problem
    finally:
        restore(launch.arguments, kept)
    return None


_ASSERTION, _ACCESS = "its assertion", "an access"
"""What stops a kernel."""


@dataclass(frozen=True)
class _Probe:
    """One launch again, with another value in one place of one of its indices: in the last, unless told else."""

    program: Program
    launch: Launch
    shared: int
    index: Any

    def source_stops(self, value: int) -> str | None:
        """What stops the source at this value."""
        self._set(value)
        return _stopped(self.launch.run)

    def edge(self, far: int) -> tuple[int, int]:
        """The last value between 0 and `far` at which the source does not stop, and the one after it."""
        inside, outside = 0, far
        while abs(outside - inside) > 1:
            between = (inside + outside) // 2
            inside, outside = (inside, between) if self.source_stops(between) else (between, outside)
        return inside, outside

    def disagreement(self, value: int, place: int = -1) -> str | None:
        """How source and PTX disagree about this value."""
        self._set(value, place)
        before = storages(self.launch.arguments)
        left: dict[int, Any] = {}
        ptx = _stopped(lambda: left.update(run_ptx(self.program, self.launch, before, self.shared)))
        source = _stopped(self.launch.run)
        if ptx != source:
            return f"at an index of {value} {source or 'nothing'} stops the source, {ptx or 'nothing'} the PTX"
        problem = None if ptx else _difference(self.launch.arguments, left, storages(self.launch.arguments))
        return f"{problem}, at an index of {value}" if problem else None

    def _set(self, value: int, place: int = -1) -> None:
        import torch

        restore(self.launch.arguments, self.launch.before)
        place %= self.index.numel()
        self.index[tuple(torch.unravel_index(torch.tensor(place), self.index.shape))] = value


def _stopped(run: Callable[[], object]) -> str | None:
    try:
        run()
    except Exception as error:
        cause = _cause(error)
        if not isinstance(cause, (AssertionError, FaultError, OutOfBoundsError)):
            raise
        return _ASSERTION if isinstance(cause, (AssertionError, TrapError)) else _ACCESS
    return None


def _cause(error: BaseException) -> BaseException:
    """What was raised first: the interpreter wraps what a kernel raises."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
