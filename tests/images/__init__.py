"""Images and the iterators over them, beside MXNet's own values, which `python -m tests.images.record` records."""
