"""Serving side of hatch-model-cache: find, verify and deploy model caches. Standard library only."""

__version__ = "0.1.0"
