"""Owners' quotas, usage and audit log, known to the API process alone, which runs no user's code."""
