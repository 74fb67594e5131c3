"""What the queries of NEXMark must answer, in plain Python: loops over all events, one by one.

Nothing of Penstock, NumPy or Arrow is used.  An event is a dictionary by the columns of its file;
times are microseconds.  A relation is asked for what it holds when the given events are all that
came; a stream for all of its rows, each with its time behind it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Row = tuple[Any, ...]
SECOND = 1_000_000
NUMBERS = {"id", "auction", "bidder", "price", "initialBid", "reserve", "seller", "category", "key"}
TIMES = {"dateTime", "expires"}
BID = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
AUCTION = ("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires",
           "seller", "category", "extra")  # fmt: skip
PERSON = ("id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra")


@dataclass(frozen=True)
class Market:
    """All that came, and the table of Q13."""

    person: list[Event]
    auction: list[Event]
    bid: list[Event]
    side_input: list[Event]

    def until(self, instant: int) -> Market:
        """Return what has come at an instant."""
        some = (
            [event for event in events if event["dateTime"] <= instant]
            for events in (self.person, self.auction, self.bid)
        )
        return Market(*some, self.side_input)


def read(folder: Path) -> Market:
    """Read the files of a folder."""
    return Market(*(_file(folder / f"{name}.csv") for name in Market.__dataclass_fields__))


def _file(path: Path) -> list[Event]:
    with path.open(newline="") as file:
        return [{name: _value(name, text) for name, text in row.items()}
                for row in csv.DictReader(file)]  # fmt: skip


def _value(name: str, text: str) -> Any:
    if name in TIMES:
        since = datetime.fromisoformat(text) - datetime(1970, 1, 1)
        return since // timedelta(microseconds=1)
    return int(text) if name in NUMBERS else text


def _row(event: Event, names: Iterable[str]) -> Row:
    return tuple(event[name] for name in names)


def _moment(time: int) -> datetime:
    return datetime.fromtimestamp(time // SECOND, UTC)


def _grouped(events: Iterable[Event], key: Callable[[Event], Any]) -> dict[Any, list[Event]]:
    groups: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        groups[key(event)].append(event)
    return groups


def _windows(time: int, size: int, slide: int) -> list[tuple[int, int]]:
    """Return the half-open windows in which a time lies."""
    first = (time - size) // slide * slide + slide
    return [(start, start + size) for start in range(first, time + 1, slide)]


# -- row by row ------------------------------------------------------------------------------------


def q0(market: Market) -> list[Row]:
    return [_row(b, ("auction", "bidder", "price", "dateTime", "extra")) for b in market.bid]


def q1(market: Market) -> list[Row]:
    return [(b["auction"], b["bidder"], 0.908 * b["price"], b["dateTime"], b["extra"])
            for b in market.bid]  # fmt: skip


def q2(market: Market) -> list[Row]:
    return [(b["auction"], b["price"]) for b in market.bid if b["auction"] % 123 == 0]


def q10(market: Market) -> list[Row]:
    return [
        (*row, _moment(row[3]).strftime("%Y-%m-%d"), _moment(row[3]).strftime("%H:%M"))
        for row in q0(market)
    ]


def q14(market: Market) -> list[Row]:
    answer = []
    for row in q1(market):
        if 1_000_000 < row[2] < 50_000_000:
            hour = _moment(row[3]).hour
            kind = "otherTime"
            if 8 <= hour <= 18:
                kind = "dayTime"
            elif hour <= 6 or hour >= 20:
                kind = "nightTime"
            answer.append((*row[:3], kind, *row[3:], row[4].count("c")))
    return answer


def q21(market: Market) -> list[Row]:
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    answer = []
    for b in market.bid:
        found = re.search("(&|^)channel_id=([^&]*)", b["url"])
        number = known.get(b["channel"].lower()) or (found and found[2])
        if number:
            answer.append((*_row(b, ("auction", "bidder", "price", "channel")), number))
    return answer


def q22(market: Market) -> list[Row]:
    names = ("auction", "bidder", "price", "channel")
    return [(*_row(b, names), *b["url"].split("/")[3:6]) for b in market.bid]


# -- joins -----------------------------------------------------------------------------------------


def q3(market: Market) -> list[Row]:
    return [
        (p["name"], p["city"], p["state"], a["id"])
        for a in market.auction
        for p in market.person
        if a["category"] == 10 and a["seller"] == p["id"] and p["state"] in ("OR", "ID", "CA")
    ]


def q13(market: Market) -> list[Row]:
    side = _grouped(market.side_input, lambda s: s["key"])
    return [
        (b["auction"], b["bidder"], b["price"], b["dateTime"], s["value"])
        for b in market.bid
        for s in side.get(b["auction"] % 10_000, ())
    ]


def q20(market: Market) -> list[Row]:
    return [
        (*_row(b, BID), *_row(a, ("itemName", "description", "initialBid", "reserve", "dateTime")),
         *_row(a, ("expires", "seller", "category", "extra")))
        for b in market.bid
        for a in market.auction
        if a["id"] == b["auction"] and a["category"] == 10
    ]  # fmt: skip


def _winners(market: Market) -> list[tuple[Event, Event]]:
    """Return each auction that has a bid in time, with the bid that wins."""
    bids = _grouped(market.bid, lambda b: b["auction"])
    found = []
    for a in market.auction:
        fair = [b for b in bids.get(a["id"], ()) if a["dateTime"] <= b["dateTime"] <= a["expires"]]
        if fair:
            order = [
                (-b["price"], b["dateTime"], b["bidder"], b["extra"], n) for n, b in enumerate(fair)
            ]
            found.append((a, fair[min(order)[-1]]))
    return found


def q4(market: Market) -> list[Row]:
    brought = defaultdict(list)
    for a, b in _winners(market):
        brought[a["category"]].append(b["price"])
    return [(category, sum(prices) / len(prices)) for category, prices in brought.items()]


def q6(market: Market) -> list[Row]:
    sold = defaultdict(list)
    for a, b in _winners(market):
        sold[a["seller"]].append((b["dateTime"], a["id"], b["price"]))
    answer = []
    for seller, sales in sold.items():
        prices = [price for _, _, price in sorted(sales)]
        for at in range(len(prices)):
            last = prices[max(at - 10, 0) : at + 1]
            answer.append((seller, sum(last) / len(last)))
    return answer


def q9(market: Market) -> list[Row]:
    names = ("auction", "bidder", "price", "dateTime", "extra")
    return [(*_row(a, AUCTION), *_row(b, names)) for a, b in _winners(market)]


# -- windows ---------------------------------------------------------------------------------------


def q5(market: Market) -> list[Row]:
    bids: dict[int, Counter[int]] = defaultdict(Counter)
    for b in market.bid:
        for _, end in _windows(b["dateTime"], 10 * SECOND, 2 * SECOND):
            bids[end][b["auction"]] += 1
    return [
        (auction, count, end)
        for end, counts in bids.items()
        for auction, count in counts.items()
        if count == max(counts.values())
    ]


def q7(market: Market) -> list[Row]:
    names = ("auction", "price", "bidder", "dateTime", "extra")
    size, before, answer = 10 * SECOND, Counter[Row](), []
    ends = {_windows(b["dateTime"], size, size)[0][1] for b in market.bid}
    for end in range(min(ends), max(ends) + 1, size):
        inside = [b["price"] for b in market.bid if end - size <= b["dateTime"] < end]
        now = Counter(
            _row(b, names)
            for b in market.bid
            if inside and b["price"] == max(inside) and end - size <= b["dateTime"] <= end
        )
        answer += [(*row, end) for row in (now - before).elements()]
        before = now
    return answer


def q8(market: Market) -> list[Row]:
    size = 10 * SECOND
    new = {(p["id"], p["name"], *_windows(p["dateTime"], size, size)[0]) for p in market.person}
    sold = {(a["seller"], *_windows(a["dateTime"], size, size)[0]) for a in market.auction}
    return [(i, name, start, end) for i, name, start, end in new if (i, start, end) in sold]


def q11(market: Market) -> list[Row]:
    answer = []
    for bidder, bids in _grouped(market.bid, lambda b: b["bidder"]).items():
        times = sorted(b["dateTime"] for b in bids)
        starts = [0, *(n for n in range(1, len(times)) if times[n] - times[n - 1] >= 10 * SECOND)]
        for first, behind in zip(starts, [*starts[1:], len(times)], strict=True):
            end = times[behind - 1] + 10 * SECOND
            answer.append((bidder, behind - first, times[first], end, end))
    return answer


def q12(market: Market) -> list[Row]:
    size = 10 * SECOND
    found = Counter((b["bidder"], *_windows(b["dateTime"], size, size)[0]) for b in market.bid)
    return [(bidder, count, start, end, end) for (bidder, start, end), count in found.items()]


# -- reports and ranks -----------------------------------------------------------------------------


def _day(bid: Event) -> str:
    return _moment(bid["dateTime"]).strftime("%Y-%m-%d")


def _classes(bids: list[Event]) -> list[list[Event]]:
    """Return all bids, and those of the three classes of prices."""
    return [
        bids,
        [b for b in bids if b["price"] < 10_000],
        [b for b in bids if 10_000 <= b["price"] < 1_000_000],
        [b for b in bids if b["price"] >= 1_000_000],
    ]


def _report(bids: list[Event]) -> Row:
    some = _classes(bids)
    return (
        *map(len, some),
        *(len({b["bidder"] for b in part}) for part in some),
        *(len({b["auction"] for b in part}) for part in some),
    )


def q15(market: Market) -> list[Row]:
    return [(day, *_report(bids)) for day, bids in _grouped(market.bid, _day).items()]


def q16(market: Market) -> list[Row]:
    groups = _grouped(market.bid, lambda b: (b["channel"], _day(b)))
    return [
        (*key, max(_moment(b["dateTime"]).strftime("%H:%M") for b in bids), *_report(bids))
        for key, bids in groups.items()
    ]


def q17(market: Market) -> list[Row]:
    answer = []
    for key, bids in _grouped(market.bid, lambda b: (b["auction"], _day(b))).items():
        prices = [b["price"] for b in bids]
        total = sum(prices)
        counts = map(len, _classes(bids))
        answer.append((*key, *counts, min(prices), max(prices), total / len(prices), total))
    return answer


def q18(market: Market) -> list[Row]:
    newest = {(b["bidder"], b["auction"]): b for b in market.bid}
    return [_row(b, BID) for b in newest.values()]


def q19(market: Market) -> list[Row]:
    answer = []
    for bids in _grouped(market.bid, lambda b: b["auction"]).values():
        rows = sorted((_row(b, BID) for b in bids), key=lambda row: (-row[2], row))
        answer += [(*row, place) for place, row in enumerate(rows[:10], 1)]
    return answer


STREAMS = {"q5": q5, "q7": q7, "q8": q8, "q11": q11, "q12": q12}
"""Queries whose answer is a stream."""
RELATIONS = {
    "q0": q0, "q1": q1, "q2": q2, "q3": q3, "q4": q4, "q6": q6, "q9": q9, "q10": q10, "q13": q13,
    "q14": q14, "q15": q15, "q16": q16, "q17": q17, "q18": q18, "q19": q19, "q20": q20,
    "q21": q21, "q22": q22,
}  # fmt: skip
