"""The engine's cache root: what is put there, whole or not at all, and taken away again."""
