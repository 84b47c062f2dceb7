"""Sessions: arrays, executors and commands in order, quotas, time to live; and the calls that need no session."""
