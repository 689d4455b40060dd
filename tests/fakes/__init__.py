"""Stand-ins for things the tests cannot have: each docstring says what the fake cannot prove."""
