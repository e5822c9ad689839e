"""Measures of what clients do to a model: their drift, and the surface of the loss between them."""
