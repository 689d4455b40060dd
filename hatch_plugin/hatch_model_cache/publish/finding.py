"""Which of the wheels that can be had a host should install: every one judged, the best first, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from packaging.version import InvalidVersion, Version

from model_cache.machine import fit
from model_cache.machine.host import Host
from model_cache.origin.keyring import label
from model_cache.origin.signature import short
from model_cache.origin.trust import Trust
from model_cache.wheel.manifest import Manifest

from .offers import Offer, Wanted

__all__ = ["Judged", "Judgement", "Standing", "by_fit", "rank"]


class Standing(Enum):
    """What a wheel would do on the host, the best first."""

    HIT = "hit"
    FITS = "fits"
    UNKNOWN = "unknown"
    MISS = "miss"
    UNSAFE = "unsafe"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Judgement:
    """standing, and every reason against the best one. adoptable: see `checking.verdict.Verdict`."""

    standing: Standing
    reasons: tuple[str, ...]
    adoptable: bool = False


@dataclass(frozen=True)
class Judged:
    """An offer and what is thought of it. usable: it may be installed here, and would help.

    adoptable: it would help, too, if config.json is the wheel's; and it may be installed here.
    """

    offer: Offer
    standing: Standing
    reasons: tuple[str, ...]
    usable: bool
    adoptable: bool = False


Judge = Callable[[Manifest], Judgement]


def by_fit(host: Host, wanted: Wanted, *, engine_alone: bool) -> Judge:
    """Judge by what the host is, without asking an engine.

    engine_alone: of the versions, only the engine's own is known; what comes with it (torch, Triton, CUDA, Python) is
    taken to be what the wheel was built with.
    """

    def judge(manifest: Manifest) -> Judgement:
        here = _like(host, manifest) if engine_alone else host
        reasons = [str(difference) for difference in fit.compare(manifest, here).differences]
        if wanted.model not in manifest.model.served_as:
            reasons.append(f"it is served as {', '.join(manifest.model.served_as)}, not as {wanted.model}")
        return Judgement(Standing.MISS if reasons else Standing.FITS, tuple(reasons))

    return judge


def _like(host: Host, manifest: Manifest) -> Host:
    engine = manifest.engine
    return replace(
        host,
        torch=engine.torch,
        cuda=engine.cuda,
        triton=engine.triton,
        python=engine.python,
        platform=engine.platform,
    )


def rank(offers: Sequence[Offer], judge: Judge, trust: Trust) -> list[Judged]:
    """Judge all offers, the best first: usable ones, then by standing, fewer reasons, newer version."""
    judged = [_judge(offer, judge, trust) for offer in {offer.sha256: offer for offer in reversed(offers)}.values()]
    order = list(Standing)

    def key(one: Judged) -> tuple[bool, int, int]:
        return not one.usable, order.index(one.standing), len(one.reasons)

    return sorted(sorted(judged, key=lambda one: _version(one.offer.manifest.version), reverse=True), key=key)


def _judge(offer: Offer, judge: Judge, trust: Trust) -> Judged:
    found = judge(offer.manifest)
    against = [reason for reason in (_distrusted(offer, trust), _yanked(offer)) if reason]
    usable = found.standing in (Standing.HIT, Standing.FITS) and not against
    return Judged(offer, found.standing, (*found.reasons, *against), usable, found.adoptable and not against)


def _distrusted(offer: Offer, trust: Trust) -> str | None:
    """Why a deploy would refuse it, as far as its signature file's names tell: the signature itself is checked when
    the wheel is there."""
    if revoked := [key for key in offer.keys if key in trust.keyring.revoked]:
        return f"it is signed by {short(revoked[0])}, a key that is revoked here"
    if trust.policy != "require" or any(key in trust.keyring.keys for key in offer.keys):
        return None
    who = f"signed by {', '.join(map(short, offer.keys))}" if offer.keys else "not signed"
    known = ", ".join(label(key) for key in trust.keyring.keys.values()) or "none"
    return f"it is {who}, and this host requires a signature by a trusted key (trusted here: {known})"


def _yanked(offer: Offer) -> str | None:
    if offer.yanked is None:
        return None
    return f"the index has withdrawn it{f': {offer.yanked}' if offer.yanked else ''}"


def _version(text: str) -> tuple[bool, Version]:
    try:
        return True, Version(text)
    except InvalidVersion:
        return False, Version("0")
