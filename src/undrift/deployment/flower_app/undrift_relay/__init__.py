"""The Flower app of a federation: it carries messages and imports neither torch nor undrift.

Whoever starts it copies `frames.py` of `undrift.federation` beside this file.
"""
