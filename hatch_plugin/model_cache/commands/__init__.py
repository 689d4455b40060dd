"""The serving side's commands, one module for each or for a few that belong together;
`model_cache.cli` has their options.
"""
