"""Algebra to fragments: keys, exchanges, choice of operator, and the fragment itself."""
