"""The operator server: graphs, executor, sessions, workers and the REST API over opbox_ops."""

from opbox_protocol.idle_threads import let_blas_threads_sleep

let_blas_threads_sleep()  # before NumPy is imported
