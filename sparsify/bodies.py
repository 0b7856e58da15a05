"""The functions that a graph calls: operators' bodies, with the features that any call uses."""

from collections.abc import Sequence

from onnx import FunctionProto, OperatorSetIdProto, helper

from sparsify.builder import Call


def bodies_of(calls: Sequence[Call], opset: int, element_type: int) -> list[FunctionProto]:
    """One body per operator called, in order of first call.

    Raises:
        SparsifyError: an operator has no body for this opset or element type.
    """
    operators = {call.operator.name: call.operator for call in calls}
    uses: dict[str, frozenset[str]] = {}
    for call in calls:
        uses[call.operator.name] = uses.get(call.operator.name, frozenset()) | call.uses
    return [
        operator.function(opset, element_type, uses[name]) for name, operator in operators.items()
    ]


def imports_of(calls: Sequence[Call]) -> list[OperatorSetIdProto]:
    """Each domain that is called, once."""
    versions = {call.operator.domain: call.operator.version for call in calls}
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]
