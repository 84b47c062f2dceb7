"""Campaigns of hostile input at the engine: `make fuzz` runs long ones, `test_campaigns.py` a slice of each."""
