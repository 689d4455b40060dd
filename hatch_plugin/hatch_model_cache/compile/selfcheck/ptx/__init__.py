"""A PTX interpreter in numpy: one kernel, every thread of a grid in lockstep, one array per register.

`program` reads the text, `machine` runs it, `instructions` says what each instruction computes, `numbers` what the
narrow floats are, `memory` what may be accessed. An instruction or form that is not known is refused by name. What is
wrong in the program (an access out of bounds or misaligned, a race in shared memory, a barrier that some threads miss,
a trap) is a `FaultError`.

Follows "PTX ISA", version 8.8. Instructions that the hardware approximates (ex2, rsqrt, …) are computed in float64 and
rounded once: their last bits are not the hardware's.
"""

from __future__ import annotations


class FaultError(Exception):
    """The program does what it must not do."""


class TrapError(FaultError):
    """The program stops itself: an assertion of it fails."""


class UnsupportedError(Exception):
    """The program has an instruction, or a form of one, that is not known here; its message is the name."""
