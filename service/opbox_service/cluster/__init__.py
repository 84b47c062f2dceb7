"""Several servers as one: which node gets a session, owners' quotas over all nodes, and models' replicas.

What decides (`controller` and what it uses) is plain Python without Ray, sockets or clocks: time is an argument.
"""
