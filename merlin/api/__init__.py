"""Studies in scripts and notebooks: `merlin.run` and `merlin.Study`; and what begins a study, which the command uses,
too. Nothing here prints.
"""
