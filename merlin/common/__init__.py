"""Import paths that scripts written for upstream Merlin use. Nothing of ours imports from here."""
