"""Columnar algorithms without state: hashing of keys, exact sums, step functions, sweeps."""
