"""Proof that a data set is whole, and its repair."""
