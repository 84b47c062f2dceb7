"""HTTP: authentication, receiving bodies, sending answers, documentation, metrics. No tensors are read here."""
