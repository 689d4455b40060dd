"""What makes torch.compile on fake weights leave the cache that a real run would look for, and ends it where it would
run.

A key of torch's AOTAutograd cache is a hash of the traced graph and of how it was called. Traced on FakeTensors, two
things in it are others than in a real run; both are put right here (torch 2.13.0).
"""

from __future__ import annotations

from typing import Any

from ..pretend.patches import Patches

CHECKED = "torch 2.13.0"


class CompiledDone(BaseException):
    """Ends a compile where its result would run. Not an Exception: nothing may catch it."""


def install(patches: Patches) -> Any:
    """Correct the keys, and end the first call of what is compiled.

    Returns:
        the ``FakeTensorMode`` for weights and inputs.
    """
    import torch
    import torch._inductor.output_code as output_code
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    _declared_types(patches)
    _static_mode(patches)
    init = torch.nn.init
    why = "reads values of a weight that has none, to fill it"
    patches.set(init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor, why=why, checked=CHECKED)

    def stop(self: Any, inputs: Any) -> Any:
        raise CompiledDone

    patches.set(output_code.CompiledFxGraph, "__call__", stop, why="nothing can run", checked=CHECKED)
    return FakeTensorMode(shape_env=ShapeEnv())


def _declared_types(patches: Patches) -> None:
    """A placeholder's annotation is in the key, and is the type of what it was traced with."""
    import torch
    from torch._dynamo.output_graph import SubgraphTracer
    from torch._subclasses.fake_tensor import FakeTensor

    create = SubgraphTracer.create_graph_input

    def create_graph_input(self: Any, name: str, type_expr: Any, example_value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(type_expr, type) and issubclass(type_expr, FakeTensor):
            parameter = getattr(example_value, "_is_param", False)
            type_expr = torch.nn.parameter.Parameter if parameter else torch.Tensor
        return create(self, name, type_expr, example_value, *args, **kwargs)

    patches.set(
        SubgraphTracer,
        "create_graph_input",
        create_graph_input,
        why="the type FakeTensor would stand in the key",
        checked=CHECKED,
    )


def _static_mode(patches: Patches) -> None:
    """``aot_module_simplified`` puts into the key whether its *arguments* are fake and their mode knows symbols; the
    arguments of a real run are real, so there it is always False, whatever dimensions are dynamic."""
    import torch._functorch.aot_autograd as aot_autograd

    real = aot_autograd.AOTConfig

    def config(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dynamic_shapes") is True:
            kwargs["dynamic_shapes"] = False
        return real(*args, **kwargs)

    patches.set(aot_autograd, "AOTConfig", config, why="a real run's arguments are not fake", checked=CHECKED)
