"""Arrays, data sets and loaders of users as the tensors of clients."""
