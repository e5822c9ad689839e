"""The command line: one file for each command, over the functions of `undrift.runs`."""
