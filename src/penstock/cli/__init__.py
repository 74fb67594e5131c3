"""The command line, the shell and the live table."""

from penstock.cli.app import app, main

__all__ = ["app", "main"]
