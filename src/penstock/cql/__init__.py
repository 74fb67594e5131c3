"""CQL text to algebra: the sqlglot dialect, the grammar, statements and the binder.

script --parse_script--> Parsed (syntax with spans) --bind--> Statement (definitions and plans)
"""

from penstock.cql.binding.bind import (
    bind,
    bind_aggregate,
    bind_duration,
    bind_query,
    bind_scalar,
    bind_window,
)
from penstock.cql.binding.once import Question, bind_question, parse_question
from penstock.cql.grammar.parse import parse_script
from penstock.cql.render import aggregate_text, describe, expr_text, render_plan, window_text

__all__ = [
    "Question",
    "aggregate_text",
    "bind",
    "bind_aggregate",
    "bind_duration",
    "bind_query",
    "bind_question",
    "bind_scalar",
    "bind_window",
    "describe",
    "expr_text",
    "parse_question",
    "parse_script",
    "render_plan",
    "window_text",
]
