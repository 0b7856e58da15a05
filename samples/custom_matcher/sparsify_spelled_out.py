"""Attention whose softmax is spelled out: `e = Exp(Q K^T * scale)`, `e / ReduceSum(e)`, times V.

A matcher only has to be right about structure where it can: sparsify proves every site by numbers.
"""

from sparsify import Operand, Site
from sparsify.constants import dims, scalar
from sparsify.layout import Transpose
from sparsify.view import consumers, element_type, label, producer


class SpelledOut:
    """Starts from each Div, looks up to the product with K and down to the product with V."""

    @staticmethod
    def match(scope):
        """Yield a site for each Div that is a softmax between two products."""
        for node in scope.nodes():
            site = read(scope, node) if node.op == "Div" else None
            if site is not None:
                yield site


def read(scope, div):
    """The site around a Div, or None."""
    exp, total = producer(div.inputs[0], "Exp"), producer(div.inputs[1], "ReduceSum")
    if exp is None or total is None or total.inputs[0] is not exp.outputs[0]:
        return None
    scaling = producer(exp.inputs[0], "Mul")
    product = producer(scaling.inputs[0], "MatMul") if scaling is not None else None
    (last,) = consumers(div.outputs[0]) or [None]
    if product is None or last is None or last.op != "MatMul" or len(dims(div.outputs[0])) != 4:
        return None
    return Site(
        name=label(div),
        scope=scope.name,
        matcher="spelled_out",
        query=Operand(product.inputs[0].name),
        key=Operand(product.inputs[1].name, (Transpose((0, 1, 3, 2)),)),
        value=Operand(last.inputs[1].name),
        output=last.outputs[0].name,
        scale=scalar(scaling.inputs[1]) or 1.0,
        element_type=element_type(product.inputs[0]) or 1,
        nodes=tuple(label(node) for node in (product, scaling, exp, total, div, last)),
    )
