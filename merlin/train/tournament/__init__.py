"""Trainers that compete: who meets whom, who wins, and what is copied and changed. Decisions only; no torch here."""
