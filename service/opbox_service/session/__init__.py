"""Sessions: batches of commands in order, quotas, time to live, and the policy for code."""
