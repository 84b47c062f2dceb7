"""Matrix products: dot and batch_dot. Fully connected layers are in nn."""
