"""Reverse-mode differentiation of a mixer: its gradients as equations in the same language."""

from costmodel.adjoint.reverse import adjoint

__all__ = ["adjoint"]
