"""Every CUDA kernel text of the repository, compiled for an H100's architecture without a GPU: make nvrtc."""
