"""A private Redis: one directory, one process, started and stopped by its owner."""
