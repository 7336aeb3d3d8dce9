"""Under its old name, until the last file that imports it from here has changed."""

from merlin.base.stored import *  # noqa: F403
