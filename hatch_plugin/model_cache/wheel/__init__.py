"""A wheel as data: its manifest, its bytes wherever they lie, what is in them, and the one verifier."""
