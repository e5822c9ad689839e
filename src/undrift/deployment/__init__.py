"""A federation on machines of others: Flower as its transport, and the commands that start it."""
