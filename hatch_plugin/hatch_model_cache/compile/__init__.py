"""Runs inside the engine's interpreter, in a process of its own: the real engine, a pretended GPU, no weights."""
