"""Code that opbox's client, operators and server share: the wire format, errors, symbol JSON,
MXNet's facts, and the transport seam.

It needs NumPy alone, and imports none of the other three. What only one side has to know does not live here.
"""
