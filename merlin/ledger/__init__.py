"""The append-only record of what happened to every task; the only truth about progress."""
