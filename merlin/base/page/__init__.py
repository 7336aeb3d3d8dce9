"""HTML pages that stand alone: their frame, their look, and the parts that they are made of."""
