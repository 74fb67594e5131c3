"""Rules that rewrite algebra, one per file; `RULES` gives their order."""
