"""Checkpoints on disk: `store` has those of one process, `shards` those of several."""
