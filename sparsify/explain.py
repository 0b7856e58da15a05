"""One site in words: its normal form, the tensors it reads, the nodes taken, the proof."""

from collections.abc import Iterator, Sequence

from sparsify.errors import SparsifyError
from sparsify.layout import Cast, Merge, Split, Squeeze, Step, Transpose, Unsqueeze
from sparsify.plugins import unknown
from sparsify.site import Findings, Mask, Operand, Site


def site_named(findings: Findings, name: str) -> Site:
    """The site of that name.

    Raises:
        SparsifyError: there is none (with the nearest ones).
    """
    found = next((site for site in findings.sites if site.name == name), None)
    if found is None:
        raise SparsifyError(unknown("site", name, [site.name for site in findings.sites]))
    return found


def explain(site: Site) -> tuple[tuple[str, str], ...]:
    """Rows of (what, text) for people."""
    rows = [
        ("scope", site.scope or "main graph"),
        ("matcher", site.matcher),
        ("normal form", formula(site)),
        *((word, _operand(operand)) for word, operand in _operands(site)),
        *(("mask", _mask(mask)) for mask in site.masks),
        ("positions", positions(site) or "every query may see every key"),
        ("heads", _heads(site)),
        ("output", _with_steps(site.output, site.result)),
        ("proof", _proof(site)),
        *(("note", note) for note in site.notes),
        ("nodes taken", "\n".join(site.nodes)),
    ]
    return tuple(rows)


def formula(site: Site) -> str:
    """The arithmetic of a site, on one line."""
    scores = f"{site.scale:.6g} * Q K^T"
    if site.softcap:
        scores = f"{site.softcap:g} * tanh({scores} / {site.softcap:g})"
    for mask in site.masks:
        if mask.multiplies:
            scores = f"t * {scores}"
    if any(mask.kind == "add" or mask.fills for mask in site.masks):
        scores += " + bias"
    scores += " where kept" if _restricted(site) else ""
    return f"softmax({scores}{', sinks' if site.sinks else ''}) V"


def positions(site: Site) -> str:
    """Which keys a query may see by position, as words; empty where all."""
    words = []
    if site.causal:
        words.append("causal")
    if site.left_window >= 0:
        words.append(f"{site.left_window} keys back")
    if site.right_window >= 0:
        words.append(f"{site.right_window} keys ahead")
    if words and site.bottom_right:
        words.append("aligned at the last key")
    if words and site.query_offset:
        words.append(f"queries start at {site.query_offset}")
    if site.key_lengths:
        words.append(f"keys end at {site.key_lengths}")
    return ", ".join(words)


def _restricted(site: Site) -> bool:
    return any(mask.forbids for mask in site.masks) or bool(positions(site))


def _operands(site: Site) -> Iterator[tuple[str, Operand]]:
    yield from (("Q", site.query), ("K", site.key), ("V", site.value))
    if site.sinks is not None:
        yield "sinks", site.sinks


def _operand(operand: Operand) -> str:
    return _with_steps(operand.tensor, operand.steps)


def _with_steps(name: str, steps: Sequence[Step]) -> str:
    return ", ".join([name, *(_step(step) for step in steps)])


def _step(step: Step) -> str:
    if isinstance(step, Transpose):
        return f"transposed by {list(step.perm)}"
    if isinstance(step, Unsqueeze | Squeeze):
        word = "with" if isinstance(step, Unsqueeze) else "without"
        return f"{word} ones at {list(step.axes)}"
    if isinstance(step, Split):
        return f"axis {step.axis} split in two"
    if isinstance(step, Cast):
        return "cast"
    assert isinstance(step, Merge)
    return f"axes {step.axis} and {step.axis + 1} made one"


_VERBS = {"add": "added", "times": "factor of the scores", "over": "divisor of the scores"}


def _mask(mask: Mask) -> str:
    verb = {"add": "added", "times": "factor of the scores", "over": "divisor of the scores"}.get(
        mask.kind
    )
    if verb is None:
        where = "true" if mask.kind == "drop" else "false"
        verb = f"{mask.fill:g} where {where}"
    factor = f", times {mask.factor:g}" if mask.kind == "add" and mask.factor != 1 else ""
    return f"{_operand(mask.operand)}: {verb}{factor}"


def _heads(site: Site) -> str:
    words = [f"{site.q_heads or 'unknown'} query heads of {site.head_dim or 'unknown'}"]
    if site.kv_heads and site.kv_heads != site.q_heads:
        words.append(f"{site.kv_heads} key-value heads")
    if site.value_dim and site.value_dim != site.head_dim:
        words.append(f"values of {site.value_dim}")
    return ", ".join(words)


def _proof(site: Site) -> str:
    if site.proof is None:
        return "not run"
    return f"largest error {site.proof:.1e} of the largest value, on random inputs"
