"""Everything between a finished wheel and a host that looks for one: static index and its catalogue page, Hub, find."""
