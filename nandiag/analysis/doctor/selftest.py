"""What a self-test of collectives, products, links and clocks says (launcher; pure)."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable

from nandiag.analysis.doctor.check import OK, SKIPPED, WARNING, WRONG, Check
from nandiag.events import words
from nandiag.store.doctor import Examined, Multiplied, Paired, SelfTest

SKEW_SECONDS = 1.0
FAR_SLOWER = 2.0
MOST_RANKS = 8
_ORDER = ("wrong", "failed", "unsupported", "ok")


def checks(test: SelfTest) -> Iterable[Check]:
    """Yield a check a collective, then products, speed, links and clocks."""
    names = list(dict.fromkeys(one.op for rank in test.ranks for one in rank.collectives))
    for name in names:
        yield _collective(name, test)
    yield from _products(test.ranks)
    yield _speed(test.ranks)
    if any(rank.links for rank in test.ranks):
        yield _links(test.ranks)
    yield _clocks(test.ranks)


def _collective(name: str, test: SelfTest) -> Check:
    by_type: dict[str, tuple[str, list[int], str | None]] = {}
    for rank in test.ranks:
        for one in rank.collectives:
            if one.op != name:
                continue
            worst, ranks, detail = by_type.get(one.dtype, ("ok", [], None))
            if _ORDER.index(one.outcome) < _ORDER.index(worst):
                worst, ranks, detail = one.outcome, [], one.detail
            by_type[one.dtype] = worst, [*ranks, *([rank.rank] if one.outcome == worst else [])], detail
    bad = {dtype: told for dtype, told in by_type.items() if told[0] in ("wrong", "failed")}
    if bad:
        dtype, (outcome, ranks, detail) = next(iter(bad.items()))
        seen = f"{outcome} in {', '.join(bad)} on {words.ranks(ranks)}; in {dtype}: {detail}"
        mend = "Run it again; if it stays, test each node alone, then in pairs, to find the adapter, link or GPU."
        return Check(name, WRONG, seen, mend)
    done = [dtype for dtype, told in by_type.items() if told[0] == "ok"]
    absent = [dtype for dtype, told in by_type.items() if told[0] == "unsupported"]
    seen = f"exact in {', '.join(done)}" if done else ""
    if absent:
        seen = "; ".join(part for part in (seen, f"{', '.join(absent)} not supported by {test.backend}") if part)
    return Check(name, OK if done else SKIPPED, seen)


def _products(ranks: tuple[Examined, ...]) -> Iterable[Check]:
    found = [(rank, one) for rank in ranks for one in rank.products]
    bad = [(rank, why) for rank, one in found if (why := _why_bad(one, _alike(rank, one, found))) is not None]
    if not found:
        return
    for rank, why in bad:
        mend = "Take it out of use and test it alone: a device that computes wrongly makes NaN that no code explains."
        yield Check("matrix products", WRONG, f"{rank.device} of rank {rank.rank} on {rank.host}: {why}", mend)
    if not bad:
        yield Check(
            "matrix products", OK, f"the same in each round and near float64 on {words.count(len(ranks), 'device')}"
        )


def _alike(rank: Examined, one: Multiplied, found: list[tuple[Examined, Multiplied]]) -> Counter[str]:
    """Count the results of the same product on devices of the same make; CPUs do not tell theirs."""
    kind = (rank.device_name, one.dtype, one.size)
    return Counter(
        other.digest
        for owner, other in found
        if owner.device_name != "cpu" and (owner.device_name, other.dtype, other.size) == kind
    )


def _why_bad(one: Multiplied, alike: Counter[str]) -> str | None:
    if one.differing:
        return f"{one.differing} of {one.rounds - 1} repeated {one.dtype} products differ from the first"
    if not one.error <= one.limit:
        return f"a {one.dtype} product is off by {one.error:.2g} of its scale, where rounding explains {one.limit:.2g}"
    # One among many that does not agree bit by bit is told; of two that differ neither is.
    most, count = max(alike.items(), key=lambda item: item[1], default=(one.digest, 0))
    if one.digest != most and count >= 3 and alike[one.digest] == 1:
        return f"its {one.dtype} product differs from that of {count} others of its kind"
    return None


def _speed(ranks: tuple[Examined, ...]) -> Check:
    name = "speed"
    timed = [rank for rank in ranks if rank.latency is not None and rank.bandwidth is not None]
    if not timed:
        return Check(name, SKIPPED, "was not measured")
    slowest = max(timed, key=_product_seconds)
    seen = f"all_reduce: {_by_rank(timed)}"
    if len(timed) < 2 or not _product_seconds(slowest):
        return Check(name, OK, seen)
    middle = statistics.median(_product_seconds(rank) for rank in timed if rank is not slowest)
    times = _product_seconds(slowest) / middle if middle else 1.0
    seen += f"; slowest rank {slowest.rank} on {slowest.host} ({times:.1f} times the others' matrix product)"
    if times > FAR_SLOWER and len(timed) > 2:
        return Check(name, WARNING, seen, "Look at its clocks, its heat and what else runs on that host.")
    return Check(name, OK, seen)


def _by_rank(ranks: list[Examined]) -> str:
    """Return latency and bandwidth of each rank, of many ranks the median."""
    if len(ranks) <= MOST_RANKS:
        return "; ".join(f"rank {one.rank} {_micro(one):.0f} us, {_rate(one.bandwidth):.2f} GB/s" for one in ranks)
    middle = statistics.median(_micro(one) for one in ranks), statistics.median(_rate(one.bandwidth) for one in ranks)
    return f"{middle[0]:.0f} us, {middle[1]:.2f} GB/s a rank (median of {len(ranks)})"


def _micro(rank: Examined) -> float:
    return (rank.latency or 0.0) * 1e6


def _rate(bandwidth: float | None) -> float:
    return (bandwidth or 0.0) / 1e9


def _product_seconds(rank: Examined) -> float:
    return sum(one.seconds for one in rank.products)


def _links(ranks: tuple[Examined, ...]) -> Check:
    links: dict[tuple[int, int], list[Paired]] = {}
    for rank in ranks:
        for link in rank.links:
            links.setdefault(link.ranks, []).append(link)
    rates = {pair: min(link.bandwidth for link in seen) for pair, seen in links.items()}
    slow = min(rates, key=lambda pair: rates[pair])
    delay = max(link.latency for link in links[slow]) * 1e6
    seen = f"slowest rank {slow[0]} to {slow[1]}: {_rate(rates[slow]):.2f} GB/s, {delay:.0f} us"
    others = [rate for pair, rate in rates.items() if pair != slow]
    if len(others) > 1 and statistics.median(others) > FAR_SLOWER * rates[slow]:
        seen += f"; the others reach {_rate(statistics.median(others)):.2f} GB/s"
        return Check(
            "links", WARNING, seen, "Between hosts that is expected; within one, look at PCIe, NVLink and NUMA."
        )
    return Check("links", OK, seen)


def _clocks(ranks: tuple[Examined, ...]) -> Check:
    hosts = {rank.host for rank in ranks}
    if len(hosts) < 2:
        return Check("clocks", SKIPPED, "all ranks are on one host")
    far = max(ranks, key=lambda rank: abs(rank.ahead))
    seen = f"at most {abs(far.ahead):.3f} s apart ({far.host}, give or take {far.unsure:.3f} s)"
    if abs(far.ahead) - far.unsure > SKEW_SECONDS:
        return Check("clocks", WARNING, seen, "Let chrony or ntpd set them: times of logs cannot be compared.")
    return Check("clocks", OK, seen)
