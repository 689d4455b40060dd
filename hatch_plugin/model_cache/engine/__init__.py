"""Inside an engine's process, and the record of what happened there."""
