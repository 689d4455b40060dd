"""Build side of hatch-model-cache: turn a recipe into a model-cache wheel."""
