"""Code of one's own that experiments and commands name, such as `mine.py:Net`."""
