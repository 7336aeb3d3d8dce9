"""What happens on the disk when a study begins: its directory, its samples, its provenance, its extensions."""
