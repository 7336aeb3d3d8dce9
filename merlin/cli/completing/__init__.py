"""What the shell completes when one presses the tabulator: verbs, options, and values."""
