"""Readers of the files that data sets are published in."""
