"""Calls without a session: graphs cached by content, inference, and forward and backward on compiled plans."""
