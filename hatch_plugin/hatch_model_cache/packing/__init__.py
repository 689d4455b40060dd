"""From an artifact directory to a finished, signed wheel."""
