"""The client's training stack: values against MXNet 1.9.1's recorded ones, and behaviour against the engine."""
