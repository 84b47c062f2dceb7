"""The operator server: graphs, executor, sessions, workers and the REST API over opbox_ops."""
