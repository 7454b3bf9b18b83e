"""What do the mixers, as real PyTorch modules, execute and cost on this machine?"""
