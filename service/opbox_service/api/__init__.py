"""The REST API: thin routes over a host of calls. No tensors are read here and no user code runs."""
