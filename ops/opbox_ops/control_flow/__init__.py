"""Operators that run graphs: _foreach, _while_loop, _cond. How graphs are inferred and compiled is the service's."""
