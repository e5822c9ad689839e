"""Uploads of a cohort on their way to a mean: validated, held or added up, and combined.

Nothing here knows how an upload has come: the simulator, several processes and a server that
receives messages use the same code.
"""
