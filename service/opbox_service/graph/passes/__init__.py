"""Passes over graphs: shapes, types, gradients and memory. Each is a function of a graph and returns new facts."""
