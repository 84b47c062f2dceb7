"""Recipes that a function which makes them keeps: some times as many as the training of a large network has."""

RECIPES = 2048
