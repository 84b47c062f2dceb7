"""Passes over graphs: shapes, types, gradients and memory. Each is a function of a graph, which it leaves as it is."""
