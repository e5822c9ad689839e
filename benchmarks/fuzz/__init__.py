"""Fuzzing of everything that reads what somebody else may have written; see `__main__`."""
