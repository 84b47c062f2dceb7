"""Loops and branches: a table of networks, compared with MXNet's values and with differences, and their bad inputs."""
