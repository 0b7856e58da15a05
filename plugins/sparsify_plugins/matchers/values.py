"""From the Softmax down to the product of probabilities and values, with what stands between."""

from dataclasses import dataclass, replace

from sparsify.constants import axis_attribute, constant, dims
from sparsify.view import Node, Tensor
from sparsify_plugins.matchers.products import PRODUCTS, ValueProduct, value_product
from sparsify_plugins.matchers.walk import (
    Stop,
    dequantized,
    fill_number,
    last_axis,
    passes_through,
    reshapes,
    swaps_last,
    value_readers,
)


@dataclass(frozen=True)
class Values:
    """The probabilities at some point of the walk down; at its end `product` takes them.

    `zeroed` are conditions (tensor, whether true zeroes) under which probabilities become 0, `cut`
    says that the last column is cut off, `turned` that the tensor is `[.., keys, queries]`.
    """

    tensor: Tensor
    views: tuple[Tensor, ...]
    nodes: tuple[Node, ...] = ()
    guarded: bool = False
    zeroed: tuple[tuple[Tensor, bool], ...] = ()
    cut: bool = False
    turned: bool = False
    unquantized: tuple[str, ...] = ()
    product: ValueProduct | None = None

    @property
    def zeroed_names(self) -> set[tuple[str, bool]]:
        """The conditions by name."""
        return {(tensor.name, drops) for tensor, drops in self.zeroed}

    def below(self, *nodes: Node) -> "Values":
        """The probabilities after `nodes`."""
        return replace(self, tensor=nodes[-1].outputs[0], nodes=(*self.nodes, *nodes))


def trace_values(values: Values) -> Values | Stop:
    """Follow the probabilities down to the one product that takes them with values."""
    while values.product is None:
        readers = value_readers(values.tensor)
        guarded = _guard(values, readers)
        if guarded is not None:
            values = guarded
            continue
        products = [node for node in readers if node.op in PRODUCTS]
        if products and len(readers) > 1:
            return Stop("probabilities_shared", "the probabilities are used elsewhere", readers[-1])
        if len(readers) != 1:
            return Stop("not_attention", "the Softmax's result is not multiplied with values")
        below = _multiplied(values, products[0]) if products else _step(values, readers[0])
        if isinstance(below, Stop):
            return below
        values = below
    return values


def _multiplied(values: Values, node: Node) -> Values | Stop:
    product = value_product(node, values.tensor, values.turned)
    if product is None:
        reason = "the probabilities are the right factor, or transposed"
        return Stop("probabilities_on_right", reason, node)
    return replace(values.below(node), product=product)


def _step(values: Values, node: Node) -> Values | Stop:
    if passes_through(node):
        return values.below(node)
    if reshapes(node):
        return replace(values.below(node), views=(*values.views, node.outputs[0]))
    if swaps_last(node):
        return replace(values.below(node), turned=not values.turned)
    if _cuts_last(node) and not values.cut:
        return replace(values.below(node), cut=True)
    if node.op == "QuantizeLinear":
        readers = value_readers(node.outputs[0])
        if len(readers) == 1 and dequantized(readers[0]) is not None:
            name = readers[0].outputs[0].name
            return replace(values.below(node, readers[0]), unquantized=(*values.unquantized, name))
    if node.op == "Where":
        zeroed = _zeroed(node, values.tensor)
        if zeroed is not None:
            return replace(values.below(node), zeroed=(*values.zeroed, zeroed))
    reason = f"the Softmax's result goes to {node.op}, not to a product with values"
    return Stop("not_attention", reason, node)


def _guard(values: Values, readers: list[Node]) -> Values | None:
    """IsNaN and Where(it, 0, probabilities), which turn rows without keys into zeros."""
    by_op = {node.op: node for node in readers}
    if len(readers) != 2 or by_op.keys() != {"IsNaN", "Where"}:
        return None
    test, choice = by_op["IsNaN"], by_op["Where"]
    if choice.inputs[0] is not test.outputs[0] or fill_number(choice.inputs[1]) != 0:
        return None
    return replace(values.below(test, choice), guarded=True)


def _zeroed(node: Node, tensor: Tensor) -> tuple[Tensor, bool] | None:
    """Where(condition, 0, probabilities) or the other way round."""
    for zero, kept in ((1, 2), (2, 1)):
        if node.inputs[kept] is tensor and fill_number(node.inputs[zero]) == 0:
            return node.inputs[0], zero == 1
    return None


def _cuts_last(node: Node) -> bool:
    """A Slice that leaves out the last column."""
    if node.op != "Slice" or len(node.inputs) < 4:
        return False
    axes = axis_attribute(node, "axes", 3)
    starts, ends = constant(node.inputs[1]), constant(node.inputs[2])
    if axes is None or len(axes) != 1 or starts is None or ends is None:
        return False
    sizes = dims(node.inputs[0])
    last = sizes[-1] if sizes else None
    end = float(ends.reshape(-1)[0])
    return last_axis(node, axes[0]) and starts.item() == 0 and end in (-1, (last or 0) - 1)
