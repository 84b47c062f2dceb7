"""Operators that make arrays out of nothing but their parameters: zeros, ones, full, arange, linspace, eye."""
