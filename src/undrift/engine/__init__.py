"""The simulator: `simulate` checks and builds a run, which plans, executes and records rounds."""
