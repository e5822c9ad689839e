"""All-reduce and gossip of peers, in memory and between processes, and the bytes they send."""
