"""`merlin status --watch`: a study on the whole screen of a terminal. The only place that imports textual."""
