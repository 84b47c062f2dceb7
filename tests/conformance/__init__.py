"""opbox against MXNet 1.9.1: what was recorded of it, and live comparisons (make conformance)."""
