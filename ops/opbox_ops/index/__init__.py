"""Operators that read or write elements at positions given as data: take, Embedding, one_hot, pick, sort, topk."""
