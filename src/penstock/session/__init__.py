"""Sessions: the Python interface."""

from penstock.session.session import QueryHandle, Session, Way

__all__ = ["QueryHandle", "Session", "Way"]
