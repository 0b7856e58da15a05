"""The machines of three papers, and what the papers published about them.

Only abstracts were at hand, so every setting below is a reconstruction; none was chosen to meet a
published figure.
"""

from dataclasses import replace

from sparsify.claims import Claim
from sparsify.workload import MatrixWork, SelectorWork, Workload, at_density
from sparsify_hw.accelerator import attention, matrices
from sparsify_hw.numbered import Numbered
from sparsify_hw.numbers import numbers_of

_ABSTRACT = "all but the published figure: only the abstract was at hand"

BALANCED = "Structured pruning of attention matrices balanced for tensor cores (2025)"
DSA_PAPER = "Dynamic sparse attention, DOTA (ASPLOS 2022, doi 10.1145/3503222.3507738)"
SSSA_PAPER = "Statically structured sparse attention (DAC 2023, doi 10.1109/DAC56929.2023.10247993)"


def balanced_claims(device: Numbered) -> tuple[Claim, ...]:
    """Half of the attention pruned: the whole model, the attention alone, and uneven rows."""
    length, width = 512, 1024
    dense = Workload(1, 16, 16, length, length, 64, 64, "float16", k_block=16)
    rest = device.dense(MatrixWork(12 * width**2 * length, 24 * width**2, "float16")).seconds
    even = at_density(dense, 0.5)
    uneven = replace(
        even, kept=((length // 4, even.blocks // 2), (length * 3 // 4, even.blocks // 2))
    )
    before, after, late = (device.cost(work) for work in (dense, even, uneven))
    setting = "BERT-large, 512 tokens, float16, half of the keys kept"
    whole = (before.seconds + rest) / (after.seconds + rest) - 1
    reconstructed = f"{_ABSTRACT}; model, length and density are ours"
    return (
        Claim(BALANCED, "speed, whole model", setting, f"{whole:+.1%}", "+8.7%", reconstructed),
        Claim(
            BALANCED,
            "energy, attention alone",
            setting,
            f"{after.joules / before.joules - 1:+.1%}",
            "-54.3%",
            f"{reconstructed}; whether it covers the whole model is not said",
        ),
        Claim(
            BALANCED,
            "time of rows of 1/4 and 3/4 against even rows",
            f"{setting} on average",
            f"{late.seconds / after.seconds:.2f}x",
            "-",
            "no figure is published; units that take the next row when free hide uneven rows, "
            "units in lock-step would wait",
        ),
    )


def dsa_claims(device: Numbered) -> tuple[Claim, ...]:
    """A tenth of the keys, found in 4 bits at a quarter of the rank."""
    length, heads, dim = 4096, 16, 64
    dense = Workload(1, heads, heads, length, length, dim, dim, "float16", q_block=4, k_block=4)
    found = SelectorWork(heads * length**2 * dim // 4, calls=1, bits=4)
    sparse = replace(at_density(dense, 0.1), selector=found)
    before, after = device.cost(dense), device.cost(sparse)
    setting = "16 heads of 64, 4096 tokens, a tenth kept, detector of 4 bits and rank 16"
    return (
        Claim(
            DSA_PAPER,
            "speed-up of attention over custom hardware",
            setting,
            f"{before.seconds / after.seconds:.1f}x",
            "4.5x",
            f"{_ABSTRACT}; ours is over the same array without skipping, theirs over another",
        ),
        Claim(
            DSA_PAPER,
            "speed-up of attention over a GPU",
            setting,
            "-",
            "152.6x",
            "their GPU and its software are not modelled",
        ),
    )


def sssa_claims(device: Numbered) -> tuple[Claim, ...]:
    """A third of the keys in dense regions."""
    dense = Workload(1, 12, 12, 1024, 1024, 64, 64, "float16", q_block=32, k_block=32)
    before, after = device.cost(dense), device.cost(at_density(dense, 1 / 3))
    setting = "12 heads of 64, 1024 tokens, a third kept in regions of 32"
    area = device.numbers["area_overhead"].value
    return (
        Claim(
            SSSA_PAPER,
            "energy of attention",
            setting,
            f"{after.joules / before.joules - 1:+.1%}",
            "-56.6%",
            f"{_ABSTRACT}; an earlier version of it says -55%",
        ),
        Claim(
            SSSA_PAPER,
            "speed of attention",
            setting,
            f"{before.seconds / after.seconds:.2f}x",
            "58.9% improvement: 1.59x or 2.43x",
            f"{_ABSTRACT}; it can be read both ways",
        ),
        Claim(
            SSSA_PAPER,
            "area",
            "a number of the table, not a prediction",
            f"{area:+.1%}",
            "+2.6%",
            "taken from the abstract; an earlier version of it says 5%",
        ),
    )


TENSORCORE_SPARSE, DSA, SSSA = (
    Numbered(name, numbers_of(name), attention, matrices, published)
    for name, published in (
        ("tensorcore-sparse", balanced_claims),
        ("dsa-accelerator", dsa_claims),
        ("sssa-accelerator", sssa_claims),
    )
)
