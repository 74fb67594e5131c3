"""Sessions: the Python interface."""

from penstock.session.handle import QueryHandle
from penstock.session.session import Session

__all__ = ["QueryHandle", "Session"]
