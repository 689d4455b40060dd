"""What names and texts in a manifest, a target record or a catalogue look like; each pattern is for the whole text."""

from __future__ import annotations

import re

SHA256 = re.compile(r"[0-9a-f]{64}")
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.!+_-]{0,99}")
WORD = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
IDENTIFIER = re.compile(r"\w[\w.+:-]{0,199}", re.ASCII)
SOME = re.compile(r"[^\x00-\x1f\x7f]+")
"""At least one character, and none that steers a terminal."""
