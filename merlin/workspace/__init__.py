"""A study on the disk: its directory, its samples, its provenance, its extensions."""
