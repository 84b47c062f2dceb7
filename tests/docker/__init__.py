"""The image, compose.yaml and what they mount: their files, and a container that serves."""
