"""Scalar expressions: the bound tree, its functions, Arrow evaluation and Spark columns."""
