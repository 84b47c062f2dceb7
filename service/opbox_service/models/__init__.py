"""Models: trained networks in folders, loaded by workers and served by the Open Inference Protocol."""
