"""The tables of timed cases: which cases they hold, their columns, and what a reader must know."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.document import Table, duration, verdict
from benchmarks.measured import Measured

Cell = Callable[[Measured], str]


@dataclass(frozen=True)
class Group:
    """Cases that share a table."""

    title: str
    cases: Callable[[], Iterator[Case]]
    columns: Mapping[str, Cell]
    note: str

    def table(self, rows: list[Measured]) -> Table:
        """All rows with their targets and verdicts."""
        columns = {**self.columns, **_VERDICT}
        body = tuple(tuple(cell(row) for cell in columns.values()) for row in rows)
        return Table("", tuple(columns), body)


@dataclass(frozen=True)
class RivalGroup(Group):
    """Cases with so many rivals, and no targets, that every rival has a row of its own."""

    def table(self, rows: list[Measured]) -> Table:
        """All rivals of all rows."""
        body = tuple(
            (*(cell(row) for cell in self.columns.values()), *_against(row, rival))
            for row in rows
            for rival in row.case.rivals
        )
        return Table("", (*self.columns, "rival", "its time", "ours / rival"), body)


def _against(row: Measured, rival: str) -> tuple[str, str, str]:
    if rival in row.absent:
        return rival, row.absent[rival], "-"
    return rival, _time(rival)(row), _ratio("ours", rival)(row)


def _time(name: str) -> Cell:
    return lambda row: duration(row.times[name].median)


def _ratio(mine: str, base: str) -> Cell:
    def cell(row: Measured) -> str:
        found = row.ratio(mine, base)
        return "-" if found is None else str(found)

    return cell


def _speed_up(row: Measured) -> str:
    found = row.found
    return f"{1 / found.median:.2f}x ({1 / found.high:.2f}-{1 / found.low:.2f})"


def _rate(row: Measured) -> str:
    problem = row.case.problem
    size = 2 * problem.kv_heads * problem.keys * problem.dim * 4
    return f"{size / row.times['ours'].median / 1e9:.1f} GB/s"


_VERDICT: Mapping[str, Cell] = {
    "target": lambda row: str(row.case.limit),
    "verdict": lambda row: verdict(row.met),
}
_SIZE: Mapping[str, Cell] = {
    "S": lambda row: str(row.case.problem.keys),
    "D": lambda row: str(row.case.problem.dim),
    "computed": lambda row: row.case.problem.what,
    "density": lambda row: f"{row.density:.4f}",
    "ours": _time("ours"),
}
_FUSED: Mapping[str, Cell] = {"fused": _time("fused"), "ours / fused": _ratio("ours", "fused")}
_FOUND: Mapping[str, Cell] = {"ours / the faster": lambda row: str(row.found)}

GROUPS: Mapping[str, Group] = {
    "dense": Group(
        "dense and causal",
        cases.dense,
        {
            **_SIZE,
            **_FUSED,
            "ours / fused, causal too": _ratio("ours", "fused alike"),
            "same layout / fused": _ratio("same layout", "fused"),
            "ours / unfused": _ratio("ours", "unfused"),
        },
        """The fused rival takes `[1, S, H*D]` and changes the layout inside; ours takes
`[1, H, S, D]`. In the column "same layout", ours stands between the Transposes that give it the
rival's inputs and output. Causal rows compare with the rival that computes every score; what the
rival takes with its own causal mask is a column. Their density is what the mask permits.""",
    ),
    "masks": Group(
        "masks",
        cases.masks,
        {
            **_SIZE,
            "fused, same mask": _time("fused alike"),
            "ours / fused, same mask": _ratio("ours", "fused alike"),
            "ours / fused, no mask": _ratio("ours", "fused"),
        },
        """Both have the mask. The additive one is `[1, 1, S, S]`, one for all heads, of normal
numbers, none of which forbids a key; of the padded keys the last one in 32 is padding.""",
    ),
    "sparse": Group(
        "sparse",
        cases.sparse,
        {**_SIZE, **_FUSED},
        """Every head and block of 64 queries has another random list of key blocks; the block that
holds the first of the queries is always in it. The rival computes every score.""",
    ),
    "residual": Group(
        "residual",
        cases.residual,
        {
            **_SIZE,
            "without residual": _time("without residual"),
            "fused": _time("fused"),
            "added / fused": lambda row: str(row.found),
        },
        """Left-out keys contribute through the means of groups of 16 (`iso`): what that adds to
the same selection without it.""",
    ),
    "short": Group(
        "from one token to many",
        cases.short,
        {
            **_SIZE,
            "fused": _time("fused"),
            "unfused": _time("unfused"),
            **_FOUND,
            "same layout / fused": _ratio("same layout", "fused"),
        },
        """The rival is the faster of the fused attention and the MatMul-Softmax-MatMul that
exporters write. 16384 tokens have one head.""",
    ),
    "decode": Group(
        "few queries on many keys",
        cases.decode,
        {
            "queries": lambda row: str(row.case.problem.queries),
            "keys": lambda row: str(row.case.problem.keys),
            "heads": lambda row: f"{row.case.problem.heads} / {row.case.problem.kv_heads}",
            "ours": _time("ours"),
            "K and V read at": _rate,
            "fused": _time("fused, cache"),
            "unfused": _time("unfused"),
            **_FOUND,
        },
        """D 64. Heads are those of the queries and those of the keys. The fused rival takes the
keys as a cache holds them, `[1, H, Sk, D]`, repeated beforehand for every query head; in the
unfused one the query heads of one key head are the rows of one matrix, so that no key is read
twice. The group `peak` tells what the memory allows; only keys and values that stay in a cache are
read faster.""",
    ),
    "rivals": RivalGroup(
        "every dense attention that could be had instead",
        cases.rivals,
        _SIZE,
        """Information, without targets. "Fused" has no mask, "fused alike" the causal one.
GroupQueryAttention is always causal and also writes the cache of keys and values. A window counts
the keys before the query's own. "ai.onnx Attention" is the operator of opset 23 in ONNX Runtime,
"torch SDPA" is `scaled_dot_product_attention`. FlexAttention is compiled for each shape; neither
that nor its block mask is part of the time. OpenVINO runs `ScaledDotProductAttention` in float32.
All have the same number of threads, and the same result as ours to a relative L2 error of 1e-5.
`pip install torch openvino` brings those that are not installed; FlexAttention needs a C++
compiler.""",
    ),
    "types": Group(
        "half-precision tensors",
        cases.types,
        {
            "S": _SIZE["S"],
            "type": lambda row: row.case.problem.dtype,
            "computed": _SIZE["computed"],
            "ours": _time("ours"),
            "ours, float32": _time("ours, float32"),
            "fused, float32": _time("fused"),
            "ours / fused, float32": _ratio("ours", "fused"),
            "ours / ours, float32": _ratio("ours", "ours, float32"),
        },
        """Computed in float32. ONNX Runtime has no fused attention of these types on CPUs.""",
    ),
    "bfloat16": Group(
        "bfloat16 arithmetic on request",
        cases.bfloat16,
        {
            **_SIZE,
            **_FUSED,
            "ours, float32": _time("ours, float32"),
            "ours / ours, float32": _ratio("ours", "ours, float32"),
        },
        """Float32 tensors. The session option `ai.sparsify.bfloat16` lets the kernel multiply in
bfloat16; sums, scores and the softmax stay float32. Where the processor cannot, it stays at
float32.""",
    ),
    "threads": Group(
        "one thread and two",
        cases.threads,
        {
            "S": _SIZE["S"],
            "D": _SIZE["D"],
            "computed": _SIZE["computed"],
            "1 thread": _time("1 thread"),
            "2 threads": _time("ours"),
            "speed-up": _speed_up,
        },
        """A session of one thread and one of two, in turn.""",
    ),
}
