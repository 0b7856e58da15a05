"""Sites in words: formulas, positions and operands as `inspect --explain` prints them."""

from dataclasses import replace

import pytest

from sparsify.explain import explain, formula, positions
from sparsify.layout import Merge, Split, Squeeze, Transpose, Unsqueeze
from sparsify.site import Mask, Operand, Site

PLAIN = Site(
    "s", "", "softmax", Operand("q"), Operand("k"), Operand("v"), "y", 0.125, 1, ("a", "b")
)


def test_a_plain_site() -> None:
    rows = dict(explain(PLAIN))
    assert rows["normal form"] == "softmax(0.125 * Q K^T) V"
    assert rows["positions"] == "every query may see every key"
    assert rows["nodes taken"] == "a\nb"
    assert rows["proof"] == "not run"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"softcap": 50.0}, "softmax(50 * tanh(0.125 * Q K^T / 50)) V"),
        ({"masks": (Mask("add", Operand("m"), 1),)}, "softmax(0.125 * Q K^T + bias) V"),
        ({"masks": (Mask("keep", Operand("m"), 9),)}, "softmax(0.125 * Q K^T where kept) V"),
        ({"masks": (Mask("times", Operand("t"), 1),)}, "softmax(t * 0.125 * Q K^T) V"),
        ({"sinks": Operand("z"), "causal": True}, "softmax(0.125 * Q K^T where kept, sinks) V"),
    ],
)
def test_formulas(changes: dict[str, object], text: str) -> None:
    assert formula(replace(PLAIN, **changes)) == text  # type: ignore[arg-type]


def test_positions() -> None:
    site = replace(PLAIN, causal=True, left_window=511, bottom_right=True, key_lengths="n")
    assert positions(site) == "causal, 511 keys back, aligned at the last key, keys end at n"


def test_steps_are_told() -> None:
    steps = (
        Transpose((0, 2, 1)),
        Unsqueeze((0,)),
        Squeeze((1,)),
        Split(0, 3, inner=4),
        Merge(0, 4),
    )
    text = dict(explain(replace(PLAIN, query=Operand("q", steps))))["Q"]
    assert text == (
        "q, transposed by [0, 2, 1], with ones at [0], without ones at [1], "
        "axis 0 split in two, axes 0 and 1 made one"
    )
