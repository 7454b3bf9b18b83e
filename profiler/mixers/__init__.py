"""How does each mixer stand as a PyTorch module? One file holds the implementations of the mixers
of the file of the same name in `costmodel.mixers`."""
