"""Sorted, immutable runs: the state of every operator, and the structures built from them."""
