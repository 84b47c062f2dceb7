"""Computes of level "library" for the GPU: cuDNN 9's convolutions, by ctypes. Nothing else of cuDNN is used."""
