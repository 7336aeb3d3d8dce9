"""From YAML text to a typed spec whose every value knows its line and column. Start with `load`."""
