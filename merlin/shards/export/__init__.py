"""Data sets leave in the formats that trainers read: one module per format over a small common base."""
