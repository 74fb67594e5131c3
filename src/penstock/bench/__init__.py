"""The experiments of the papers that Penstock follows, run on its own operators."""
