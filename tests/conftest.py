"""What holds for all tests."""

from __future__ import annotations

import os
import signal

# torch puts it into the key of all that it compiles: a wheel would miss wherever a pipeline runs these tests.
os.environ.pop("CI", None)

# A shell's background job ignores Ctrl-C, and so would everything that is started here and to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
