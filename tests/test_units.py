"""Numbers with units as people read them."""

import pytest

from sparsify.units import scaled


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (1.35e-5, "s", "13.5 us"),
        (9.999e-4, "s", "1 ms"),
        (0.0254, "s", "25.4 ms"),
        (1.0, "s", "1 s"),
        (12345.0, "s", "12300 s"),
        (1420.0, "J", "1.42 kJ"),
        (5e-10, "J", "0.0005 uJ"),
    ],
)
def test_three_digits_and_a_prefix(value, unit, text):
    assert scaled(value, unit) == text
