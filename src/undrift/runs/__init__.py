"""Running experiments: from an experiment to its folder of results, from Python or the command."""
