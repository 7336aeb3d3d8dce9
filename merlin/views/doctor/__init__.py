"""What `merlin doctor` looks at. Functions named `judge_…` are pure; those named `examine_…` look for themselves."""
