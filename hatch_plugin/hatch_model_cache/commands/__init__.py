"""The build commands of `model-cache`, one module for each or for a few that belong together.

A module has ``add_parsers(commands)``, which registers its commands. Each sets ``run``, which takes the Namespace (with
``engine_command``: what follows ``--``) and returns the exit code. Errors are raised, not printed. `model_cache.cli`
lists the commands with one line of help each.
"""

from __future__ import annotations

MODULES = {
    "check": "check",
    "compile": "compile",
    "diff": "diff",
    "find": "find",
    "index": "index",
    "keygen": "signing",
    "matrix": "matrix",
    "new": "new",
    "pull": "hub",
    "push": "hub",
    "rehearse": "rehearse",
    "selfcheck": "selfcheck",
    "sign": "signing",
    "sigstore": "signing",
    "targets": "targets",
    "variant": "variant",
}
"""Command → the module here that has it; only that one is imported."""
