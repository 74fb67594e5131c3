"""Syntax trees to algebra: names looked up, types checked."""
