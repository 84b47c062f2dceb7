"""Links that delay, limit and cut: a proxy before a server, and programs that get to their end over it."""
