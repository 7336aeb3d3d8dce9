"""A study as one HTML file, to open anywhere, to print and to send to somebody.

facts.py gathers what is said; `page.py` puts the sections in order; each section, and each drawing, is a file of its
own.
"""
