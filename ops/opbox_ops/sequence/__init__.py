"""Operators on sequences of different lengths: masking, reversing, taking the last step."""
