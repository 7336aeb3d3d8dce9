"""Data sets made again, or another one beside them, from what a study has left on the disk."""
