"""Penstock: continuous queries on Apache Spark."""

from penstock.errors import PenstockError

__version__ = "0.1.0"
__all__ = ["PenstockError", "QueryHandle", "Session", "Snapshot", "function", "open_checkpoint"]


def __getattr__(name: str) -> object:
    """Load the session, and with it Spark, only when it is asked for: workers do not need it."""
    if name in ("Session", "QueryHandle"):
        from penstock import session

        return getattr(session, name)
    if name == "function":
        from penstock.expr import own

        return own.function
    if name in ("Snapshot", "open_checkpoint"):
        from penstock.asking import checkpoints

        return getattr(checkpoints, name)
    raise AttributeError(f"module 'penstock' has no attribute '{name}'")
