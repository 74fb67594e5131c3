"""Times and durations near the ends of 64 bits: right, or refused, never silently wrong."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import cql
from penstock.catalog import StreamDef
from penstock.errors import DataError, NotSupportedError, QueryError
from penstock.model import INF, MIN_TIME, Field, Schema
from penstock.reference import relation, snapshot_at
from penstock.sources.formats import read_slice
from penstock.testing import Rig
from penstock.windows import LONGEST
from tests.comparison import same_bag
from tests.examples import examples
from tests.strategies import LONG, STRING, Data
from tests.test_onetime import CATALOG, Keeper, bag_of
from tests.test_oracle import truth

TIMES = [
    *(MIN_TIME, MIN_TIME + 1, MIN_TIME + 2, MIN_TIME + 8, -(2**62), -(2**61), -101, -7, -1, 0, 1),
    *(7, 2**61, 2**62, INF - 8, INF - 2, INF - 1),
]
LENGTHS = [1, 7, 2**40, 2**60, LONGEST - 1, LONGEST]
ORIGINS = [MIN_TIME + 1, -(2**62), -3, 0, 5, 2**62, INF - 1]

length, origin = st.sampled_from(LENGTHS), st.sampled_from(ORIGINS)
windows = st.one_of(
    st.builds("RANGE {}".format, length),
    st.builds("RANGE {} SLIDE {}".format, length, length),
    st.builds("RANGE UNBOUNDED SLIDE {}".format, length),
    st.builds("RANGE {} SLIDE {} START {}".format, length, length, origin),
    st.builds("RANGE UNBOUNDED SLIDE {} START {}".format, length, origin),
    st.builds("TUMBLE {}".format, length),
    st.builds("HOP {} SLIDE {}".format, length, length),
    st.builds("HOP {} SLIDE {} START {}".format, length, length, origin),
    st.builds("TUMBLE {} OFFSET {} START {}".format, length, length, origin),
    st.builds("FIXED {}".format, length),
    st.builds("FIXED {} START {}".format, length, origin),
    st.builds("SESSION {}".format, length),
    st.builds("PARTITION BY k SESSION {}".format, length),
    st.builds("SESSION {} START {}".format, length, origin),
    st.builds("ROWS 2 RANGE {}".format, length),
    st.builds("PARTITION BY k ROWS 2 RANGE {}".format, length),
    st.builds("AFTER {}".format, origin),
    st.builds("BEFORE {}".format, origin),
    st.just("NOW"),
)
bodies = st.sampled_from(
    [
        "SELECT k, t FROM s [{}]",
        "SELECT k, COUNT(*) AS n, MAX(t) AS m, SUM(1) AS ones FROM s [{}] GROUP BY k",
        "SELECT DISTINCT k FROM s [{}]",
        "ISTREAM (SELECT k, t FROM s [{}])",
        "DSTREAM (SELECT k, t FROM s [{}])",
        "SELECT k, t FROM s [{}] ORDER BY t DESC LIMIT 2",
        "SELECT k FROM s [{}] EXCEPT SELECT k FROM s [NOW]",
        "SELECT a.k, a.t, b.t AS u FROM s [{0}] a JOIN s [{0}] b ON a.k = b.k",
    ]
)
rows = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(TIMES)), min_size=1, max_size=8)


@settings(max_examples=examples(400), deadline=None)
@given(
    window=windows,
    body=bodies,
    rows=rows,
    ordered=st.booleans(),
    slack=st.sampled_from([0, 5, LONGEST]),
    lifetime=st.sampled_from(["direct", "negative"]),
)
def test_every_window_against_the_oracle(window, body, rows, ordered, slack, lifetime):
    given = sorted(rows, key=lambda row: row[1]) if ordered else rows
    rig = Rig(
        f"CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t SLACK {slack};"
        f"CREATE QUERY q AS {body.format(window)};",
        settings={"lifetime": lifetime},
    )
    for row in given:
        rig.feed("s", [row])
    rig.end()
    rig.assert_oracle()


@settings(max_examples=examples(200), deadline=None)
@given(
    window=st.sampled_from(
        ["1 SLIDE 1", "7 SLIDE 1", "7 SLIDE 3", "1 SLIDE 7", f"{LONGEST} SLIDE {2**60}",
         f"9 SLIDE {LONGEST}", f"{2**40} SLIDE {2**39} OFFSET 5", "20 SLIDE 4 START -3"]
    ),
    body=st.sampled_from(
        [
            "SELECT k, window_start, window_end FROM s [HOP {}]",
            "SELECT window_start, window_end, COUNT(*) AS n FROM s [HOP {}] "
            "GROUP BY window_start, window_end",
            "ISTREAM (SELECT k, window_end, MAX(t) AS m FROM s [HOP {}] GROUP BY window_end, k)",
        ]
    ),
    rows=rows,
    rules=st.booleans(),
)  # fmt: skip
def test_bounds_against_the_oracle(window, body, rows, rules):
    rig = Rig(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        f"CREATE QUERY q AS {body.format(window)};",
        settings={"rules": rules},
    )
    for row in sorted(rows, key=lambda row: row[1]):
        rig.feed("s", [row])
    rig.end()
    rig.assert_oracle()


@pytest.mark.parametrize("rules", [True, False])
def test_a_row_is_shown_in_so_many_windows_only(rules):
    def rig(query):
        stream = "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        return Rig(f"{stream} CREATE QUERY q AS {query};", settings={"rules": rules})

    many = f"s [HOP {LONGEST} SLIDE 1]"
    message = f"at most 100000 windows, but this HOP puts it into {LONGEST}; use a longer SLIDE"
    for query in (
        f"SELECT k, window_start FROM {many}",
        f"SELECT window_end, COUNT(*) AS n FROM {many} GROUP BY window_end",
    ):
        with pytest.raises(NotSupportedError, match=message):
            rig(query).feed("s", [("a", 1)])
    counted = rig(f"SELECT COUNT(*) AS n FROM {many}")  # no bounds: one row
    counted.feed("s", [("a", 1), ("a", 5)])
    counted.end()
    counted.assert_oracle()


@settings(max_examples=examples(60), deadline=None)
@given(long=st.sampled_from(LENGTHS[3:]), slide=st.sampled_from(LENGTHS[3:]), rows=rows)
def test_snapshots_at_pulses_against_the_oracle(long, slide, rows):
    rig = Rig(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        f"CREATE QUERY q AS RSTREAM (SELECT k, t FROM s [RANGE {long} SLIDE {slide}]);"
    )
    rig.feed("s", sorted(rows, key=lambda row: row[1]))
    rig.end()
    rig.assert_oracle()


@settings(max_examples=examples(60), deadline=None)
@given(length=length, rows=rows)
def test_frames_by_range_against_the_oracle(length, rows):
    rig = Rig(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY q AS SELECT k, t, COUNT(*) OVER (PARTITION BY k ORDER BY t RANGE BETWEEN "
        f"{length} PRECEDING AND CURRENT ROW) AS n FROM s;"
    )
    rig.feed("s", sorted(rows, key=lambda row: row[1]))
    rig.end()
    rig.assert_oracle()


def test_the_end_of_time_is_no_time(tmp_path):
    """2**63 - 1 means for ever: a row that says it is wrong, and the others are not."""
    rig = Rig(
        "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
        "CREATE QUERY q AS SELECT k FROM s [NOW];"
    )
    with pytest.raises(DataError, match="must be below 2"):
        rig.feed("s", [("a", INF)])
    path = tmp_path / "a.csv"
    path.write_text(f"k,t\na,1\nb,{INF}\nc,{INF - 1}\nd,\n")
    schema = Schema((Field("k", STRING), Field("t", LONG)))
    stream = StreamDef("s", schema, "replay", {"path": str(path)}, 1)
    (found,) = read_slice(stream, str(path), 0, -1)
    assert found.table.column("k").to_pylist() == ["a", "c"]
    assert found.rejected.column("reason").to_pylist() == [
        f"the column 't' must be from {-INF} to {INF - 1}",
        "the time column 't' is null",
    ]


@settings(max_examples=examples(100), deadline=None)
@given(
    keep=st.sampled_from([0, *LENGTHS, INF]),
    window=windows,
    rows=rows,
    final=st.booleans(),
)
def test_what_is_kept_against_the_oracle(keep, window, rows, final):
    node = cql.bind_query(f"SELECT * FROM r [{window}]", CATALOG)
    given = [((k, 1, t), t) for k, t in sorted(rows, key=lambda row: row[1])]
    data = Data({"r": given}, {})
    try:
        engine = Keeper({"kept": node}, data, keep, 2)
    except NotSupportedError:
        assert window.startswith("HOP"), window  # it shows its bounds, and they are too many
        return
    for element in given:
        engine.batch({"r": [element[0]]})
    if final:
        engine.batch({}, final=True)
    (held,) = engine.held()
    whole = relation(node, truth(data))
    near = {t + d for t in TIMES for n in (0, *LENGTHS) for d in (-n - 1, -n, n, n - 1)}
    for time in sorted(t for t in near if held.low <= t < held.until):
        columns = held.snapshot(engine._storage, time)
        found = bag_of(pa.Table.from_arrays(list(columns), names=list(node.schema.names)))
        same_bag(found, snapshot_at(whole, time), time)


@pytest.mark.parametrize(
    "window",
    [
        "RANGE {}",
        "RANGE 7 SLIDE {}",
        "RANGE {} SLIDE 7",
        "FIXED {}",
        "SESSION {}",
        "ROWS 2 RANGE {}",
        "RANGE UNBOUNDED SLIDE {}",
    ],
)
def test_longer_durations_are_refused(window):
    stream = "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t;"
    Rig(f"{stream} CREATE QUERY q AS SELECT k FROM s [{window.format(LONGEST)}]")
    for length in (LONGEST + 1, 2**62 - 1, INF - 1, INF):
        with pytest.raises(QueryError, match=r"a duration must be below 2\*\*61 units of time"):
            Rig(f"{stream} CREATE QUERY q AS SELECT k FROM s [{window.format(length)}]")


def test_longer_slack_and_keep_are_refused():
    stream = "CREATE STREAM s (k STRING, t BIGINT) USING memory TIMESTAMP BY t"
    with pytest.raises(QueryError, match="below 2"):
        Rig(f"{stream} SLACK {LONGEST + 1};")
    with pytest.raises(QueryError, match="below 2"):
        Rig(f"{stream}; CREATE MATERIALIZED VIEW v KEEP {LONGEST + 1} AS SELECT k FROM s [NOW]")
