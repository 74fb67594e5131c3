"""Text to syntax trees: the sqlglot dialect and the grammar."""
