"""Understands masks: what can be proved becomes attributes of a site, the rest stays, smaller."""

from sparsify.masks.understand import Masks

__all__ = ["Masks"]
