"""Owners' quotas, usage and audit log. Only the API process has them, because it runs no user code."""
