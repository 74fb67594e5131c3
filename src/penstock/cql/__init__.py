"""CQL text to algebra: the sqlglot dialect, statements and the binder."""
