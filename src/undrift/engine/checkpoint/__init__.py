"""Checkpoints on disk: `store` has those of one process, `shards` those of several, `due` when.

`lock` keeps other runs out of a folder of checkpoints, or of results."""
