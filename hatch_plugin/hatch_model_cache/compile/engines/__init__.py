"""One adapter per engine: everything that is true of an engine's version and not of another's."""
