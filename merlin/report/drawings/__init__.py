"""Drawings of a report: plain SVG, whose colours are those of the page. They need no matplotlib."""
