"""The fused recurrent operator, RNN: its packed parameters, its cells step by step, and the operator."""
