"""Arms the rehearsal in every Python process that has this directory on PYTHONPATH and the variable set."""

import os

if os.environ.get("MODEL_CACHE_REHEARSAL"):
    from hatch_model_cache.compile import rehearsal

    rehearsal.arm(os.environ["MODEL_CACHE_REHEARSAL"])
