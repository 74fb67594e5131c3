"""The events of NEXMark: people, auctions and bids of an auction house, any number of them.

As the generators of Beam and Flink make them, with their constants: of fifty events one is a new
person, three are new auctions and 46 are bids; 10,000 events are a second of event time.  Half of
the bids go to one auction that is hot for a while, three quarters come from one bidder, three
quarters of the auctions from one seller; half of the bids come through one of four known channels.
The random numbers are NumPy's, so single values differ from theirs.

Events are made in parts of `PART`, each from the seed and its own number, so memory does not grow
with their number, and the same numbers always give the same files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.bench.event_folders import appearing, held_note, refuse
from penstock.errors import ConfigError

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
CYCLE = PEOPLE + AUCTIONS + BIDS
"""So many events, of which so many are of each kind, in this order."""
PART = 500_000
"""Events that are made at once; a multiple of `CYCLE`."""
FIRST = 1000
"""The number of the first person, and of the first auction."""
LEAD = 10
"""Numbers that are used although nobody has them yet."""
ACTIVE_PEOPLE, OPEN_AUCTIONS = 1000, 100
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_EVERY = 100
"""Every so many people or auctions another one is hot."""
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
SIDE_INPUT = 10_000
"""Rows of the table of Q13."""
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
"""How large an event is on the average; its column ``extra`` fills it up."""

FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah",
               "Deiter", "Walter")  # fmt: skip
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones",
              "Noris")  # fmt: skip
CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond",
          "Seattle", "Kent", "Cheyenne")  # fmt: skip
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
STREAMS = ("person", "auction", "bid")
FORMATS = ("csv", "parquet")
_NOTE = "nexmark.json"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """Which events: how many, by which seed, how many a second, and the time of the first."""

    count: int
    seed: int = 1
    per_second: int = 10_000
    begin: str = "2015-07-15 00:00:00"

    def __post_init__(self) -> None:
        if self.count < CYCLE:
            raise ConfigError(f"there must be {CYCLE} events or more, got {self.count}")
        if not 1 <= self.per_second <= 1_000_000:
            raise ConfigError(f"events a second must be from 1 to 1,000,000, got {self.per_second}")
        if self.seed < 0:
            raise ConfigError(f"the seed must not be negative, got {self.seed}")

    @property
    def epoch(self) -> int:
        """Return the time of the first event, in milliseconds."""
        since = datetime.fromisoformat(self.begin) - datetime(1970, 1, 1)
        return round(since.total_seconds() * 1000)

    def milliseconds(self, number: Numbers) -> Numbers:
        """Return the time of events by their numbers."""
        return self.epoch + number * 1000 // self.per_second


def counts(events: int) -> dict[str, int]:
    """Return how many of so many events are people, auctions and bids."""
    whole, rest = divmod(events, CYCLE)
    people = whole * PEOPLE + min(rest, PEOPLE)
    auctions = whole * AUCTIONS + min(max(rest - PEOPLE, 0), AUCTIONS)
    return {"person": people, "auction": auctions, "bid": events - people - auctions}


def parts(events: Events) -> Iterator[dict[str, pa.Table]]:
    """Yield the events in the order of their times, as one table for each stream."""
    for number, first in enumerate(range(0, events.count, PART)):
        chance = np.random.default_rng([events.seed, number])
        index = np.arange(first, min(first + PART, events.count), dtype=np.int64)
        place = index % CYCLE
        yield {
            "person": _people(events, index[place < PEOPLE], chance),
            "auction": _auctions(
                events, index[(place >= PEOPLE) & (place < PEOPLE + AUCTIONS)], chance
            ),
            "bid": _bids(events, index[place >= PEOPLE + AUCTIONS], chance),
        }


def side_input() -> pa.Table:
    """Return the table of Q13: a value for each number below `SIDE_INPUT`."""
    keys = np.arange(SIDE_INPUT, dtype=np.int64)
    return pa.table({"key": keys, "value": pa.array(keys).cast(pa.string())})


def prepared(
    place: Path,
    events: Events,
    formats: tuple[str, ...] = ("csv",),
    progress: Callable[[float], None] = lambda share: None,
) -> Path:
    """Return the folder with the files of these events; make them unless they are there.

    A folder appears by one rename when it is whole.  One with other files is never touched.
    """
    wrong = set(formats) - set(FORMATS)
    if wrong or not formats:
        got = ", ".join(sorted(wrong)) or "nothing"
        raise ConfigError(f"events must be written as {' or '.join(FORMATS)}, got {got}")
    note = {**asdict(events), "formats": sorted(formats)}
    if place.exists():
        held = held_note(place, _NOTE, "NEXMark's events")
        fits = {**held, "formats": None} == {**note, "formats": None}
        if not fits or not set(formats) <= set(held.get("formats", ())):
            refuse(place, note, held)
        progress(1.0)
        return place
    with appearing(place, _NOTE, note) as making:
        _write(making, events, formats, progress)
    return place


def _write(
    folder: Path, events: Events, formats: tuple[str, ...], progress: Callable[[float], None]
) -> None:
    writers: dict[str, list[Callable[[pa.Table], None]]] = {name: [] for name in STREAMS}
    closers: list[Callable[[], None]] = []
    try:
        done = 0
        for tables in parts(events):
            for name, table in tables.items():
                if not writers[name]:
                    for kind in formats:
                        write, close = _writer(folder / f"{name}.{kind}", table.schema)
                        writers[name].append(write)
                        closers.append(close)
                for write in writers[name]:
                    write(table)
                done += table.num_rows
            progress(done / events.count)
    finally:
        for close in closers:
            close()
    for kind in formats:
        write, close = _writer(folder / f"side_input.{kind}", side_input().schema)
        write(side_input())
        close()


def _writer(path: Path, schema: pa.Schema) -> tuple[Callable[[pa.Table], None], Callable[[], None]]:
    """Open a file; return what adds rows to it and what closes it."""
    if path.suffix == ".parquet":
        parquet = pq.ParquetWriter(path, schema)
        return parquet.write_table, parquet.close
    file = open(path, "wb")  # noqa: SIM115 - it is closed by who asked for it
    file.write(",".join(schema.names).encode() + b"\n")
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    return lambda table: pyarrow.csv.write_csv(table, file, options), file.close


def _people(events: Events, number: Numbers, chance: np.random.Generator) -> pa.Table:
    size = len(number)
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    mail = _texts(_lengths(chance, size, 7), chance), _texts(_lengths(chance, size, 5), chance)
    columns = {
        "id": FIRST + _last_person(number),
        "name": _some(names, chance, size),
        "emailAddress": _joined([mail[0], "@", mail[1], ".com"]),
        "creditCard": _digits(chance, size),
        "city": _some(CITIES, chance, size),
        "state": _some(STATES, chance, size),
        "dateTime": _times(events.milliseconds(number)),
    }
    return pa.table({**columns, "extra": _extra(columns, PERSON_BYTES, chance)})


def _auctions(events: Events, number: Numbers, chance: np.random.Generator) -> pa.Table:
    size = len(number)
    initial, more = _prices(chance, size), _prices(chance, size)
    when = events.milliseconds(number)
    # as long as it takes until as many auctions have come as are open at a time, on the average
    ahead = events.milliseconds(number + OPEN_AUCTIONS * CYCLE // AUCTIONS)
    lasts = 1 + (chance.random(size) * np.maximum((ahead - when) * 2, 1)).astype(np.int64)
    hot = _last_person(number) // HOT_EVERY * HOT_EVERY
    seller = np.where(chance.integers(0, 4, size) > 0, hot, _some_person(number, chance))
    columns = {
        "id": FIRST + _last_auction(number),
        "itemName": _texts(_lengths(chance, size, 20), chance),
        "description": _texts(_lengths(chance, size, 100), chance),
        "initialBid": initial,
        "reserve": initial + more,
        "dateTime": _times(when),
        "expires": _times(when + lasts),
        "seller": FIRST + seller,
        "category": FIRST_CATEGORY + chance.integers(0, CATEGORIES, size),
    }
    return pa.table({**columns, "extra": _extra(columns, AUCTION_BYTES, chance)})


def _bids(events: Events, number: Numbers, chance: np.random.Generator) -> pa.Table:
    size = len(number)
    hot_auction = _last_auction(number) // HOT_EVERY * HOT_EVERY
    hot_bidder = _last_person(number) // HOT_EVERY * HOT_EVERY + 1
    other = _some_auction(number, chance)
    auction = np.where(chance.integers(0, 2, size) > 0, hot_auction, other)
    bidder = np.where(chance.integers(0, 4, size) > 0, hot_bidder, _some_person(number, chance))
    known = chance.integers(0, 2, size) > 0
    channel = np.where(
        known,
        chance.integers(0, len(HOT_CHANNELS), size),
        len(HOT_CHANNELS) + chance.integers(0, CHANNELS, size),
    )
    names, addresses = _channels(events.seed)
    columns = {"auction": FIRST + auction, "bidder": FIRST + bidder, "price": _prices(chance, size)}
    when = _times(events.milliseconds(number))
    extra = _extra({**columns, "dateTime": when}, BID_BYTES, chance)
    taken = pa.array(channel)
    columns |= {"channel": names.take(taken), "url": addresses.take(taken)}
    return pa.table({**columns, "dateTime": when, "extra": extra})


def _last_person(number: Numbers) -> Numbers:
    """Return the newest person when an event comes, counted from 0."""
    return number // CYCLE * PEOPLE + np.minimum(number % CYCLE, PEOPLE - 1)


def _last_auction(number: Numbers) -> Numbers:
    """Return the newest auction when an event comes, counted from 0; 0 before the first one."""
    place = np.minimum(number % CYCLE - PEOPLE, AUCTIONS - 1)
    return np.maximum(number // CYCLE * AUCTIONS + np.maximum(place, -1), 0)


def _some_person(number: Numbers, chance: np.random.Generator) -> Numbers:
    """Return one of the people of late, or one of those who come next."""
    people = _last_person(number) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + _below(active + LEAD, chance)


def _some_auction(number: Numbers, chance: np.random.Generator) -> Numbers:
    """Return one of the auctions of late, or one of those that come next."""
    last = _last_auction(number)
    first = np.maximum(last - OPEN_AUCTIONS, 0)
    return first + _below(last - first + 1 + LEAD, chance)


def _below(most: Numbers, chance: np.random.Generator) -> Numbers:
    return (chance.random(len(most)) * most).astype(np.int64)


def _prices(chance: np.random.Generator, size: int) -> Numbers:
    """Return prices in cents: each power of ten as often as the others, up to ten millions."""
    return np.round(10 ** (chance.random(size) * 6) * 100).astype(np.int64)


def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Return the names and addresses of all channels, known ones first."""
    chance = np.random.default_rng([seed, PART])
    size = len(HOT_CHANNELS) + CHANNELS
    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
    directories = [_texts(_lengths(chance, size, 5), chance, "_") for _ in range(3)]
    numbers = chance.permutation(1 << 20)[:size]
    told = (chance.integers(0, 10, size) > 0) & (np.arange(size) >= len(HOT_CHANNELS))
    ends = pa.array(
        [f"&channel_id={n}" if t else "" for n, t in zip(numbers.tolist(), told, strict=True)]
    )
    one, two, three = directories
    addresses = _joined(
        ["https://www.nexmark.com/", one, "/", two, "/", three, "/item.htm?query=1", ends]
    )
    return pa.array(names), addresses


def _digits(chance: np.random.Generator, size: int) -> pa.Array:
    """Return the numbers of credit cards: four times four digits."""
    digits = chance.integers(ord("0"), ord("9") + 1, (size, 19), dtype=np.uint8)
    digits[:, 4::5] = ord(" ")
    return _strings(np.full(size, 19), digits.ravel())


def _extra(columns: Mapping[str, Any], wanted: int, chance: np.random.Generator) -> pa.Array:
    """Return texts that fill rows up to a size, a fifth more or less of what is missing."""
    size = len(columns["dateTime"])
    held = np.zeros(size, np.int64)
    for column in columns.values():
        is_text = isinstance(column, pa.Array) and pa.types.is_string(column.type)
        held += pc.binary_length(column).to_numpy() if is_text else 8
    missing = np.maximum(wanted - held, 0)
    spread = np.round(missing * 0.2).astype(np.int64)
    lengths = missing - spread + _below(2 * spread, chance)
    return _strings(lengths, chance.integers(97, 123, int(lengths.sum()), dtype=np.uint8))


def _lengths(chance: np.random.Generator, size: int, most: int) -> Numbers:
    return 3 + chance.integers(0, most - 3, size)


def _texts(lengths: Numbers, chance: np.random.Generator, gap: str = " ") -> pa.Array:
    """Return texts of small letters with a gap for every thirteenth; none at the ends."""
    letters = chance.integers(97, 123, int(lengths.sum()), dtype=np.uint8)
    letters[chance.integers(0, 13, len(letters)) == 0] = ord(gap)
    ends = np.cumsum(lengths)
    for edge in (ends - lengths, ends - 1):
        letters[edge] = np.where(letters[edge] == ord(gap), ord("a"), letters[edge])
    return _strings(lengths, letters)


def _strings(lengths: Numbers, letters: npt.NDArray[np.uint8]) -> pa.Array:
    """Return texts that lie one behind the other."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


def _joined(pieces: list[Any]) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, "")


def _some(values: list[str] | tuple[str, ...], chance: np.random.Generator, size: int) -> pa.Array:
    return pa.array(values).take(pa.array(chance.integers(0, len(values), size)))


def _times(milliseconds: Numbers) -> pa.Array:
    return pa.array(milliseconds, pa.timestamp("ms"))
