"""A module compiled to a function without guards, and the record of what may be done with it.

``torch._inductor.standalone_compile`` gives a function of flat tensors that checks nothing. The module is traced here
by ``torch.export``, which lifts parameters by name and refuses to specialise a dimension that was said to vary. What
such a function may be called with is written down (`model_cache.wheel.calls`), and `model_cache.engine.standalone`
checks it. What cannot be written down stops the build.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from model_cache.engine import program
from model_cache.wheel.calls import Calls, Dimension, Limit, Owner, Tensor

from ..pretend.patches import Patches
from .torch_reads import Reads

_LEAST = 2
"""torch traces every dimension that varies as if it were neither 0 nor 1 (`ShapeEnv`, specialize_zero_one)."""

_MOST = 2**63 - 1
_ROOT = "module."


def compiled(module: Any, inputs: tuple[Any, ...], patches: Patches) -> tuple[bytes, Calls]:
    """Compile a module for inputs of this form; all tensors are fake.

    Returns:
        what torch's ``BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts`` takes, and the record.

    Raises:
        RuntimeError: naming everything that the serving host could not check.
    """
    import torch
    import torch._inductor

    leaves: list[Any] = []
    structure = _structure(inputs, leaves, "its inputs")
    _refuse(_unsuited(module, leaves))
    reads = Reads(module, patches)
    traced = _traced(module, reads)
    with torch.no_grad():
        exported = torch.export.export(traced, inputs, dynamic_shapes={"inputs": _varying(inputs)}, strict=False)
        graph = _without_traces(exported.graph_module)
        values = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        fake = values[-1].fake_mode
        with torch._guards.tracing(torch._guards.TracingContext(fake)):
            artifact = torch._inductor.standalone_compile(
                graph, values, dynamic_shapes="from_tracing_context", aot=True
            )
    names = [str(spec.target or "") for spec in exported.graph_signature.input_specs]
    shapes = _Shapes(fake.shape_env)
    tensors = [
        shapes.tensor(value, name.removeprefix(_ROOT) if name else f"input {n - len(names) + len(leaves)}")
        for n, (name, value) in enumerate(zip(names, values, strict=True))
    ]
    absent = reads.absent()
    calls = Calls(
        tensors=tuple(tensors[: -len(leaves)]),
        tied=program.tied(module),
        leaves=tuple(tensors[-len(leaves) :]),
        dimensions=tuple(shapes.dimensions()),
        limits=shapes.limits(),
        inputs=structure,
        outputs=traced.outputs,
        owners=tuple(Owner(one.path, program.name(type(one.it)), one.values, one.objects) for one in reads.seen),
        absent=absent,
        sources=reads.sources(),
        functions=tuple(reads.functions()),
        settings=program.settings(),
    )
    problems = sorted(reads.problems)
    unknown = program.tensors(module).keys() - program.tied(module).keys() - {tensor.name for tensor in tensors}
    if unknown:
        problems.append(f"torch.export has left out {', '.join(sorted(unknown))}")
    constants = {name.removeprefix(_ROOT) for name in exported.constants} - program.tensors(module).keys()
    if constants:
        problems.append(f"it uses tensors that are no parameters or buffers: {', '.join(sorted(constants))}")
    _refuse([*problems, *_written_to(artifact, tensors), *shapes.problems])
    return bytes(artifact.serialize()), calls


def _refuse(problems: list[str]) -> None:
    if problems:
        raise RuntimeError("mode standalone cannot be used for this module: " + "; ".join(problems))


def _unsuited(module: Any, leaves: list[Any]) -> list[str]:
    found = [f"{name or 'the module'} is in training mode" for name, one in module.named_modules() if one.training][:1]
    if not leaves:
        found.append("its inputs hold no tensor")
    return [*found, *program.hooked(module)]


def _traced(module: Any, reads: Reads) -> Any:
    """A module around `module` whose forward notes what is read and how the outputs are held."""
    import torch

    # where the type checker runs there is no torch, so its classes are of no known type
    class Traced(torch.nn.Module):  # type: ignore[misc]
        outputs: object = None

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> Any:
            with reads.noting():
                result = self.module(*inputs)
            self.outputs = _structure((result,), [], "what it returns")
            return result

    return Traced()


def _without_traces(graph: Any) -> Any:
    """A graph without the stacks of its nodes, which would be in the artifact, with the paths of this machine."""
    import torch

    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
    return graph


def _structure(value: Any, leaves: list[Any], what: str) -> Any:
    """Tuples, lists and dicts with the number of each tensor in its place; the tensors go to `leaves`."""
    import torch

    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return len(leaves) - 1
    if type(value) in (tuple, list):
        return {type(value).__name__: [_structure(item, leaves, what) for item in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _structure(item, leaves, what) for key, item in value.items()}}
    raise RuntimeError(
        f"mode standalone cannot be used for this module: {what} must be tensors in tuples, lists and dicts, "
        f"not {program.name(type(value))}"
    )


def _varying(value: Any) -> Any:
    """What ``torch.export`` wants to know of the marks of ``torch._dynamo.mark_dynamic``."""
    import torch

    if isinstance(value, torch.Tensor):
        ranges = getattr(value, "_dynamo_dynamic_range", ())
        return {one.dim: torch.export.Dim.DYNAMIC(min=one.min, max=one.max) for one in ranges}
    if isinstance(value, dict):
        return {key: _varying(item) for key, item in value.items()}
    return type(value)(_varying(item) for item in value)


def _written_to(artifact: Any, tensors: list[Tensor]) -> Iterator[str]:
    """Arguments that the compiled function changes: two of them that overlap would be changed in another order."""
    entry = artifact.inner_fn.compiled_fn.serialize()
    for index in entry.runtime_metadata.mutated_inp_runtime_indices:
        yield f"{tensors[index].name} is written to"


def _limit(condition: Any) -> Limit | None:
    """A sympy relation as a limit for a product of sizes, if it is one: ``4096*s0 <= 2147483647``."""
    if getattr(condition, "rel_op", "") in (">=", ">"):
        condition = condition.reversed
    if getattr(condition, "rel_op", "") not in ("<=", "<") or not condition.rhs.is_Integer:
        return None
    most = int(condition.rhs) - (condition.rel_op == "<")
    factor, product = condition.lhs.as_coeff_Mul()
    powers = dict(product.as_powers_dict())
    if not factor.is_Integer or factor <= 0:
        return None
    if not all(base.is_Symbol and power.is_Integer and power > 0 for base, power in powers.items()):
        return None
    names = [str(base) for base, power in powers.items() for _ in range(int(power))]
    return Limit(tuple(sorted(names)), most // int(factor))


class _Shapes:
    """Sizes and strides of a trace, in terms of the inputs' dimensions."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._symbols: dict[Any, None] = {}
        self._problems: list[str] = []

    def tensor(self, value: Any, name: str) -> Tensor:
        """The record of a fake tensor."""
        sizes = [self._expression(size) for size in value.shape]
        strides = [self._expression(stride) for stride in value.stride()]
        for size in sizes:
            if not isinstance(size, int):
                if size.is_Symbol:
                    self._symbols[size] = None
                else:
                    self._problems.append(f"{name} has the size {size}")
        stride = () if self._is_contiguous(sizes, strides) else tuple(map(str, strides))
        if not all(each.isdigit() for each in stride):
            self._problems.append(f"{name} is not contiguous and has dimensions that vary")
        return Tensor(name, str(value.dtype), str(value.device), tuple(map(str, sizes)), stride)

    def dimensions(self) -> Iterator[Dimension]:
        """What each size that varies may be."""
        for symbol in self._symbols:
            found = self._environment.var_to_range[symbol]
            most = int(found.upper) if found.upper.is_Integer else _MOST
            yield Dimension(str(symbol), max(_LEAST, int(found.lower)), most)

    def limits(self) -> tuple[Limit, ...]:
        """What guards of torch say of dimensions, and not their ranges; anything else than a limit is a problem."""
        from torch.utils._sympy import functions
        from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

        ranges = {
            symbol: ValueRanges(max(_LEAST, found.lower), found.upper)
            for symbol, found in self._environment.var_to_range.items()
        }
        most: dict[tuple[str, ...], int] = {}
        for guard in self._environment.guards:
            condition = self._environment.replace(guard.expr)
            for name in ("Min", "Max"):  # sympy's own know which of 128*s0 and 512*s0 is less (torch 2.11.0 asks)
                condition = condition.replace(getattr(functions, name), getattr(functions.sympy, name))
            if condition == True:  # noqa: E712 - a sympy object
                continue
            known = bound_sympy(condition, ranges)
            if known.is_singleton() and bool(known.lower):
                continue
            limit = _limit(condition)
            if limit is None or not set(limit.names) <= set(map(str, self._symbols)):
                self._problems.append(f"its dimensions must satisfy {condition}")
            else:
                most[limit.names] = min(limit.most, most.get(limit.names, limit.most))
        return tuple(Limit(names, size) for names, size in sorted(most.items()))

    @property
    def problems(self) -> list[str]:
        """What cannot be written down, once all tensors and limits were asked for."""
        return self._problems

    def _expression(self, size: Any) -> Any:
        """A number, or what it is in terms of symbols."""
        if isinstance(size, int):
            return size
        found = self._environment.replace(size.node.expr)
        return int(found) if found.is_Integer else found

    @staticmethod
    def _is_contiguous(sizes: list[Any], strides: list[Any]) -> bool:
        expected: Any = 1
        for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
            if size != 1:
                if stride != expected:
                    return False
                expected = expected * size
        return True
