"""Public conformance suites, one per kind of plugin."""

from sparsify.testing.device import check_device
from sparsify.testing.operator import TOLERANCE, Variant, check_operator
from sparsify.testing.operator_cases import Case, operator_cases
from sparsify.testing.pattern import check_pattern

__all__ = [
    "TOLERANCE",
    "Case",
    "Variant",
    "check_device",
    "check_operator",
    "check_pattern",
    "operator_cases",
]
