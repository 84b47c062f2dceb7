"""What the self-check of a GPU calls, and how it compares an answer with NumPy's.

The rows are the check's own: tests are not installed. Who runs them, when, and in which process is the service's
business (`opbox_service.selfcheck`); which computes may be chosen then is in `opbox_ops.trust`.
"""
