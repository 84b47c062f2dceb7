"""Neural-network layers: one operator or tight family a file. Losses live in `loss`."""
