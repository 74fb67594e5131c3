"""The only room that knows Spark: session, sources, exchange, pipeline, sinks."""
