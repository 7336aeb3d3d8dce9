"""Views of a study's ledger: snapshot, failures, task rows, SQL. They only read."""
