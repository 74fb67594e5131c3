"""Buffers between operators."""
