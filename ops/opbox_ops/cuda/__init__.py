"""Computes of level "generated" for the GPU: kernels of our own, a file a family with its CUDA text and launch rule.

`kernel` compiles and binds; a family's file has the text, how it is launched, the bytes that it moves beside the least
possible, and attaches computes to operators. The operators' own computes stay the reference, and run what a kernel
does not take. A text means one element type `T` and the type `A` that it is computed in: half precision is computed in
single.
"""
