"""The sections of a report: each makes HTML of facts, and "" where it has nothing to say."""
