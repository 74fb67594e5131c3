"""Values inside values: ARRAY, STRUCT and MAP columns, taken apart, put together, and compared."""
