"""Optimizer steps as operators: a weight and its gradient in, the new weight out, the optimizer's state in place."""
