"""The option `components`: caches beside that of compiled models which a wheel may hold too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hatch_model_cache import targets
from hatch_model_cache.compile.engines import vllm_versions, vllm_warmup

COMPONENTS = (vllm_warmup.COMPONENT,)
"""What the option may name."""

_ELSEWHERE = (
    "is looked for in the directory of the compiled model: leave VLLM_USE_AOT_COMPILE and TRITON_CACHE_DIR out of "
    "`environment`."
)


def problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it).

    Args:
        values: the values of Recipe's fields, as far as they are right.
    """
    components = values["components"]
    for index, item in enumerate(components):
        if item not in COMPONENTS:
            yield f"components[{index}]", f"must be {' or '.join(map(json.dumps, COMPONENTS))}, not {item!r}."
    if not components:
        return
    engines = [f"vllm=={version}" for version in sorted(vllm_versions.WARM_UP)]
    if values["engine"] and values["engine"] not in engines:
        yield "components", f"is for {', '.join(engines)}, not {values['engine']}: leave it away."
    if any(targets.load(name).kind != "gpu" for name in values["targets"]):
        yield "components", "is for GPU kernels, and a target has none: leave it away."
    environment = values["environment"]
    if environment.get("VLLM_USE_AOT_COMPILE", "1") == "0" or "TRITON_CACHE_DIR" in environment:
        yield "components", _ELSEWHERE
