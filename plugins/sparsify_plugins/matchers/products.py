"""Products of two computed tensors as exporters write them: MatMul, FusedMatMul, Einsum.

All are read as two factors in the layout that an attention wants, so that nobody else has to know
which operator it was.
"""

from dataclasses import dataclass

from sparsify.constants import dims
from sparsify.layout import Step, Transpose
from sparsify.view import Node, Tensor

PRODUCTS = ("MatMul", "FusedMatMul", "Einsum")


@dataclass(frozen=True)
class Factor:
    """A tensor laid out as `[lead.., rows, columns]`: it is transposed, then unsqueezed."""

    tensor: Tensor
    perm: tuple[int, ...]
    unsqueeze: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """Dimensions after both steps."""
        return len(self.perm) + len(self.unsqueeze)


@dataclass(frozen=True)
class ScoreProduct:
    """`alpha * query @ key^T`: both `[lead.., length, dim]`."""

    query: Factor
    key: Factor
    alpha: float = 1.0


@dataclass(frozen=True)
class ValueProduct:
    """`probabilities @ value`: value `[lead.., keys, dim]`; `result` leads to the node's output."""

    value: Factor
    result: tuple[Step, ...] = ()


def score_product(node: Node) -> ScoreProduct | None:
    """A node as the product of queries and keys; None where it is no such product."""
    if node.op == "Einsum":
        return _einsum_scores(node)
    ranks = {_rank(tensor) for tensor in (*node.inputs[:2], node.outputs[0])} - {None}
    rank = max(filter(None, ranks), default=4)
    transposed = _transposed(node)
    if transposed is None or rank < 2 or len(ranks) > 1:
        return None
    left, right = (_in_place(rank), _swapped(rank))
    query = Factor(node.inputs[0], right if transposed[0] else left)
    key = Factor(node.inputs[1], left if transposed[1] else right)
    return ScoreProduct(query, key, float(node.attrs.get("alpha", 1.0)))


def value_product(node: Node, probabilities: Tensor, turned: bool) -> ValueProduct | None:
    """A node as the product of probabilities and values.

    `turned` says that `probabilities` is `[lead.., keys, queries]`; then it must stand on the
    right, and the result is transposed too.
    """
    if node.op == "Einsum":
        return None if turned else _einsum_values(node, probabilities)
    transposed = _transposed(node)
    if transposed is None or node.attrs.get("alpha", 1.0) != 1.0:
        return None
    side = 1 if turned else 0
    if node.inputs[side] is not probabilities or transposed[side]:
        return None
    tensor = node.inputs[1 - side]
    # where no rank is known, most have four dimensions, and the proof has the last word
    rank = _rank(tensor) or _rank(probabilities) or _rank(node.outputs[0]) or 4
    turn = transposed[1 - side] != turned
    value = Factor(tensor, _swapped(rank) if turn else _in_place(rank))
    return ValueProduct(value, (Transpose(_swapped(rank)),) if turned else ())


def _rank(tensor: Tensor) -> int | None:
    sizes = dims(tensor)
    return None if sizes is None else len(sizes)


def _in_place(rank: int) -> tuple[int, ...]:
    return tuple(range(rank))


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _transposed(node: Node) -> tuple[bool, bool] | None:
    """Which factors a FusedMatMul transposes; None where it moves batch dimensions too."""
    if node.op == "MatMul":
        return False, False
    if node.attrs.get("transBatchA") or node.attrs.get("transBatchB"):
        return None
    return bool(node.attrs.get("transA")), bool(node.attrs.get("transB"))


# Einsum ---------------------------------------------------------------------------------------


def _letters(node: Node) -> tuple[str, str, str] | None:
    """The letters of both inputs and of the output of a two-input Einsum without ellipsis."""
    equation = node.attrs.get("equation", "").replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2 or "." in equation:
        return None
    if any(len(set(term)) != len(term) for term in (*terms, output)):
        return None
    return terms[0], terms[1], output


def _einsum_scores(node: Node) -> ScoreProduct | None:
    letters = _letters(node)
    if letters is None or len(letters[2]) < 2:
        return None
    one, two, output = letters
    *lead, row, column = list(output)
    summed = (set(one) & set(two)) - set(output)
    terms = dict(zip((one, two), node.inputs, strict=True))
    if len(summed) != 1 or len(terms) != 2:
        return None
    (dim,) = summed
    factors = []
    for letter, other in ((row, column), (column, row)):
        term = next((t for t in terms if letter in t and other not in t), None)
        factor = None if term is None else _factor(terms[term], term, [*lead, letter, dim])
        if factor is None:
            return None
        factors.append(factor)
    return ScoreProduct(factors[0], factors[1])


def _einsum_values(node: Node, probabilities: Tensor) -> ValueProduct | None:
    letters = _letters(node)
    if letters is None:
        return None
    side = 0 if node.inputs[0] is probabilities else 1
    given, other, output = letters[side], letters[1 - side], letters[2]
    *lead, row, column = list(given)
    own = set(other) - set(given)
    if len(own) != 1 or column in output or row in other:
        return None
    (dim,) = own
    order = [*lead, row, dim]
    value = _factor(node.inputs[1 - side], other, [*lead, column, dim])
    if value is None or set(output) != set(order):
        return None
    return ValueProduct(value, (Transpose(tuple(order.index(letter) for letter in output)),))


def _factor(tensor: Tensor, term: str, wanted: list[str]) -> Factor | None:
    """A term's tensor laid out as `wanted`; dimensions it lacks become ones."""
    if not set(term) <= set(wanted):
        return None
    perm = tuple(term.index(letter) for letter in wanted if letter in term)
    missing = tuple(axis for axis, letter in enumerate(wanted) if letter not in term)
    return Factor(tensor, perm, missing)
