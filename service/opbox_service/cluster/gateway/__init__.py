"""The gateway of a cluster: one address for all nodes. It passes HTTP through to the node that has what is asked for.

It has no state of its own, so several may run side by side.
"""
