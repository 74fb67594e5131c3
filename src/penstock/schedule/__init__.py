"""Which operator runs next: one policy per file."""
