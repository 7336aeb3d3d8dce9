"""The command line: commands, tables, progress displays and exit codes; the only place that prints."""
