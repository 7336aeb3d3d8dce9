"""One file per command; `merlin.cli.main` imports a file only when its command is called."""
