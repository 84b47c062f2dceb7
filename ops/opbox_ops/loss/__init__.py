"""Losses: operators whose gradient starts a backward pass, and does not read the gradient of their output."""
