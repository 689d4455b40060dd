"""What a compiled function without guards is protected from: argv is the directory of block.py, its factory, a wheel.

Every case is a program that differs in one thing from the one that was compiled. Prints one JSON object: of each, what
was said, or by how much the answer differed from eager.
"""

from __future__ import annotations

import copy
import json
import sys
import timeit
from collections.abc import Callable
from typing import Any

import torch

import model_cache.torch
from model_cache.errors import MismatchError

DIRECTORY, _, WHEEL = sys.argv[1:]
sys.path.insert(0, DIRECTORY)
import block  # noqa: E402 - it lies in that directory

answer: dict[str, Any] = {}
loaded = model_cache.torch.load(WHEEL)
torch.manual_seed(1)
module, _ = block.make()
for parameter in module.parameters():
    torch.nn.init.normal_(parameter, std=0.05)


def x(tokens: int = 5) -> torch.Tensor:
    """An input."""
    return torch.randn(tokens, block.WIDTH)


def refused(function: Callable[[], Any]) -> list[str]:
    """What is said when it is called; nothing said is a wrong answer."""
    try:
        function()
    except MismatchError as error:
        return list(error.problems)
    return ["NOT REFUSED"]


def changed(change: Callable[[Any], Any]) -> Any:
    """A copy of the module with one thing changed."""
    other = copy.deepcopy(module)
    change(other)
    return other


def biased(block: Any) -> None:
    """Give a matrix a bias that it had not."""
    block.out.bias = torch.nn.Parameter(torch.ones(block.out.out_features))


def hook(*_: object) -> None:
    """Does nothing."""


class Gelu(torch.nn.Module):
    """Not what was compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)


answer["bind"] = {
    "dtype": refused(lambda: loaded.bind(changed(lambda m: m.to(torch.bfloat16)))),
    "shape": refused(lambda: loaded.bind(changed(lambda m: setattr(m, "down", torch.nn.Linear(688, 255, bias=False))))),
    "bias": refused(lambda: loaded.bind(changed(biased))),
    "class": refused(lambda: loaded.bind(changed(lambda m: setattr(m, "down", Gelu())))),
    "more": refused(lambda: loaded.bind(changed(lambda m: m.add_module("more", Gelu())))),
    "hook": refused(lambda: loaded.bind(changed(lambda m: m.down.register_forward_hook(hook)))),
    "method": refused(lambda: loaded.bind(changed(lambda m: setattr(m, "forward", hook)))),
    "tied": refused(lambda: loaded.bind(changed(lambda m: setattr(m, "before_mlp", m.before_attention)))),
    "stride": refused(lambda: loaded.bind(changed(lambda m: setattr(m.out.weight, "data", m.out.weight.data.t())))),
}
normed = block.normed
block.normed = hook
answer["bind"]["function"] = refused(lambda: loaded.bind(module))
block.normed = normed
bound = loaded.bind(module)
with torch.no_grad():
    answer["errors"] = [float((bound(given) - module(given)).abs().max()) for given in map(x, (2, 3, 16, 64))]
    answer["call"] = {
        "dtype": refused(lambda: bound(x().double())),
        "integers": refused(lambda: bound(torch.ones(5, block.WIDTH, dtype=torch.int64))),
        "shape": refused(lambda: bound(torch.randn(5, block.WIDTH + 1))),
        "rank": refused(lambda: bound(torch.randn(1, 5, block.WIDTH))),
        "one token": refused(lambda: bound(x(1))),
        "stride": refused(lambda: bound(torch.randn(block.WIDTH, 5).t())),
        "number": refused(lambda: bound(x(), x())),
        "no tensor": refused(lambda: bound(3)),
    }
    with torch.autocast("cpu"):
        answer["call"]["autocast"] = refused(lambda: bound(x()))
    with torch.device("cpu"):
        answer["call"]["mode"] = refused(lambda: bound(x()))
    one = x(1)
    answer["or_module"] = float((bound.or_module(one) - module(one)).abs().max())
    answer["use"] = [loaded.use().hits, loaded.use().misses]

    given = x(3)
    before = bound(given)
    module.out.weight = torch.nn.Parameter(module.out.weight * 2)  # other weights are no other program
    answer["replaced"] = float((bound(given) - module(given)).abs().max())
    answer["replaced moved"] = float((bound(given) - before).abs().max())
    module.out.weight.data.mul_(2)
    answer["written"] = float((bound(given) - module(given)).abs().max())
    answer["check_microseconds"] = round(1e6 * min(timeit.repeat(lambda: bound._checked((given,)), number=50)) / 50, 1)
    module.forward = hook
    answer["call"]["method set"] = refused(lambda: bound(given))
    del module.forward
    down, module.down = module.down, Gelu()
    answer["call"]["class"] = refused(lambda: bound(given))
    module.down = down
    answer["back"] = float((bound(given) - module(given)).abs().max())
    biased(module)
    answer["call"]["bias"] = refused(lambda: bound(given))
    module.out.bias = None
    module.to(torch.bfloat16)
    answer["call"]["module's dtype"] = refused(lambda: bound(given))
    module.to(torch.float32)
answer["call"]["gradients"] = refused(lambda: bound(x()))
print(json.dumps(answer))
