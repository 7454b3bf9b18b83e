"""What does training cost? The equations of a mixer's gradients, in the language of the mixer."""

from costmodel.adjoint.reverse import adjoint

__all__ = ["adjoint"]
