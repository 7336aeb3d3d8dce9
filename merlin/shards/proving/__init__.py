"""Proof that a data set is intact, and its repair."""
