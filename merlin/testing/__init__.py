"""Contract suites that every implementation of a seam must pass."""
