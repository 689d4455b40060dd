"""One input for the fuzzers: whatever bytes a signature file holds, it is read or refused, and trusts nobody."""

from __future__ import annotations

from functools import cache

from model_cache.errors import DamagedError, NotTrustedError
from model_cache.origin import signature
from model_cache.origin.keyring import Keyring, TrustedKey
from model_cache.origin.trust import Trust
from model_cache.wheel.payload import Payload

MANIFEST = b'{"schema_version": 1}\n'
PUBLIC = bytes(range(32))
KEY = "630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd"
"""The id of PUBLIC: nobody has the private key of these bytes, so no input can be trusted."""


class _Wheel(Payload):
    """A wheel with two small files."""

    label, name, version = "fuzzed", "model-cache-x", "1"

    def files(self) -> dict[str, int]:
        return {}

    def open(self, path: str) -> None:
        raise AssertionError("nothing of the wheel is opened for a wrong signature")

    def metadata(self, name: str) -> bytes:
        return b""

    def close(self) -> None:
        pass


@cache
def _trust(policy: str, key: str) -> Trust:
    return Trust(policy, Keyring({key: TrustedKey(key, PUBLIC, "fuzz", None, "")}))


def fuzz_signature(data: bytes) -> None:
    """Raises when `data` breaks a promise: no other error than ours, nobody trusted, one spelling of each content."""
    try:
        found = signature.parse(data)
    except DamagedError:
        found = ()
    if found:
        assert signature.to_bytes(found) == data
    for key in (KEY, *(one.key for one in found[:1])):
        for policy in ("prefer", "require"):
            try:
                origin = _trust(policy, key).judge(_Wheel(), MANIFEST, data)
            except (DamagedError, NotTrustedError):
                continue
            assert policy == "prefer"
            assert found
            assert not origin.trusted
