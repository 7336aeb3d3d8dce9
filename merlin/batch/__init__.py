"""Batch schedulers: launch lines, job scripts, jobs and allocations. A new one is a file, and a line in `registry`."""
