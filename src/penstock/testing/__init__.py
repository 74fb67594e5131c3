"""Testing queries without Spark: feed rows, move time, assert exact answers, wait for nothing.

`Rig` runs a CQL script as it is, with the parser, binder, optimizer, planner and operators of the
real engine, in milliseconds.  `check` does it in one call.  `LocalEngine` and `run_local` are what
a rig runs on: plans of the algebra instead of a script.
"""

from penstock.testing.local import Interval, LocalEngine, Row, run_local, to_table
from penstock.testing.rig import Rig, check

__all__ = ["Interval", "LocalEngine", "Rig", "Row", "check", "run_local", "to_table"]
