"""Tells people what has become of a study: commands, webhooks, mail."""
