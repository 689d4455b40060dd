"""The parent side of work in the engine's interpreter: compiles, rehearsals, and what they leave."""
