"""Many recipes in one file: `matrix.toml` says which wheels there are to be, and everything here follows from it.

`matrix_file` reads it, `cells` are the wheels, `records` know which are up to date, `builder` makes the others on a
`machine` or a `ray_cluster`, `display` shows it, `emission` writes it for a pipeline.
"""
