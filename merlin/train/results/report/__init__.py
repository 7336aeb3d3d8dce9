"""An evaluation as pictures, and as one page to show to colleagues."""
