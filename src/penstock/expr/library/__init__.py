"""The function library, one module per subject; `penstock.expr.functions` gathers them."""
