"""Build side of hatch-model-cache: turn a recipe into a model-cache wheel."""

from hatch_model_cache.api import Compiled, compile_model

__all__ = ["Compiled", "compile_model"]
