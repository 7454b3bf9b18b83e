"""The mixers as PyTorch modules: file NAME.py implements the mixers of costmodel/mixers/NAME.py."""
