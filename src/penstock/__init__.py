"""Penstock: continuous queries on Apache Spark."""

__version__ = "0.1.0"
