"""The lane: prioritised rows are answered beside the micro-batches."""
