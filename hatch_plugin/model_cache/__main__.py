"""`python -m model_cache`: the `model-cache` command."""

import sys

from model_cache.cli import main

if __name__ == "__main__":
    sys.exit(main())
