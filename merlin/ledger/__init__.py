"""The append-only record of what happened to every task. It alone decides how far a study is."""
