"""Asking what is kept: one-time queries, and reading a checkpoint without Spark."""
