"""What comes out of a run: predictions, held-out errors, a report, models for other programs."""
