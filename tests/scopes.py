"""Models whose attentions stand in bodies of If, Loop and Scan, and in local functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from graphs import BOOL, FLOAT, QKV, Array, C, Value, Y, build, node, tensor
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

INT64 = TensorProto.INT64
SHAPE = ["b", 4, "s", 16]
DOMAIN = "org.example"
FLAG: Value = ("flag", BOOL, [])
KEEP: Value = ("keep", BOOL, ["b", 1, "s", "t"])
BIAS: Value = ("bias", FLOAT, ["b", 1, "s", "t"])

Gone = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Case:
    """A model, the scopes of its sites, and what a rewrite takes away: names of nodes and stored
    tensors by scope.
    """

    model: ModelProto
    scopes: tuple[str, ...]
    gone: Gone
    stored: Gone = field(default_factory=dict)


def attention(
    p: str = "", *, q: str = "q", kt: str = "", mask: str = "", c: str = "c"
) -> list[NodeProto]:
    """One attention that makes `{p}y`; every name in it opens with `p`."""
    scores = f"{p}masked" if mask else f"{p}scaled"
    return [
        *([] if kt else [node("Transpose", "k", f"{p}kt", perm=[0, 1, 3, 2])]),
        node("MatMul", f"{q} {kt or p + 'kt'}", f"{p}raw"),
        node("Mul", f"{p}raw {c}", f"{p}scaled"),
        *([node("Add", f"{p}scaled {mask}", f"{p}masked")] if mask else []),
        node("Softmax", scores, f"{p}p", axis=-1),
        node("MatMul", f"{p}p v", f"{p}y"),
    ]


def names(nodes: Sequence[NodeProto], *more: str) -> frozenset[str]:
    return frozenset(n.name for n in nodes) | set(more)


def body(nodes: Sequence[NodeProto], outputs: str, **parts: Sequence[object]) -> GraphProto:
    results = [helper.make_tensor_value_info(name, FLOAT, SHAPE) for name in outputs.split()]
    inputs, stored = list(parts.get("inputs", [])), list(parts.get("stored", []))
    return helper.make_graph(list(nodes), "body", inputs, results, stored)  # type: ignore[arg-type]


def choice(
    then: GraphProto, other: GraphProto, outputs: str = "y", name: str = "If_0"
) -> NodeProto:
    branches = {"then_branch": then, "else_branch": other}
    return helper.make_node("If", ["flag"], outputs.split(), name, **branches)


def function(
    name: str, nodes: Sequence[NodeProto], opset: int = 17, inputs: str = "q k v", output: str = "y"
) -> FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_function(DOMAIN, name, inputs.split(), [output], list(nodes), imports)


def call(name: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    made = node(name, inputs, output, **attributes)
    made.domain = DOMAIN
    return made


def with_functions(model: ModelProto, *functions: FunctionProto) -> ModelProto:
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model


def both_branches() -> Case:
    """The merged decoder: the same attention in both branches, everything captured."""
    then, other = attention("t_"), attention("e_")
    model = build([choice(body(then, "t_y"), body(other, "e_y"))], [*QKV, FLAG], Y, [C])
    scopes = ("If_0/else_branch", "If_0/then_branch")
    gone = {scopes[0]: names(other), scopes[1]: names(then)}
    return Case(model, scopes, gone, {"": frozenset("c")})


def same_names_in_both_branches() -> Case:
    """Names of sibling bodies need not differ; each has a scale of its own."""
    parts = [body(attention(c="own"), "y", stored=[tensor("own", x)]) for x in (0.25, 0.5)]
    outputs = [("z", FLOAT, SHAPE)]
    model = build([choice(parts[0], parts[1], "z")], [*QKV, FLAG], outputs)
    scopes = ("If_0/else_branch", "If_0/then_branch")
    gone, stored = names(attention()), frozenset({"own"})
    return Case(model, scopes, dict.fromkeys(scopes, gone), dict.fromkeys(scopes, stored))


def loop() -> Case:
    """The queries are carried from turn to turn."""
    inside = attention("l_", q="x")
    model = build([_loop([*inside, node("Identity", "go", "on")], "l_y")], [*QKV, _N], Y, [C])
    return Case(model, ("Loop_0/body",), {"Loop_0/body": names(inside)}, {"": frozenset("c")})


_N: Value = ("n", INT64, [])


def _loop(nodes: Sequence[NodeProto], carried: str) -> NodeProto:
    inputs = [("i", INT64, []), ("go", BOOL, []), ("x", FLOAT, SHAPE)]
    outputs = [("on", BOOL, []), (carried, FLOAT, SHAPE)]
    inside = helper.make_graph(
        list(nodes),
        "body",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
    )
    return helper.make_node("Loop", ["n", "", "q"], ["y"], "Loop_0", body=inside)


def scan() -> Case:
    """Each element of a sequence of queries attends to the same keys."""
    inside = attention("s_", q="x")
    part = body(inside, "s_y", inputs=[helper.make_tensor_value_info("x", FLOAT, SHAPE)])
    nodes = [
        node("Unsqueeze", "q zero", "q1"),
        helper.make_node("Scan", ["q1"], ["y1"], "Scan_0", body=part, num_scan_inputs=1),
        node("Squeeze", "y1 zero", "y"),
    ]
    model = build(nodes, QKV, Y, [C, tensor("zero", [0], np.int64)])
    return Case(model, ("Scan_0/body",), {"Scan_0/body": names(inside)}, {"": frozenset("c")})


def if_in_loop() -> Case:
    """Two levels; the transposed keys are made one level up, and die there."""
    inside = attention("d_", q="x", kt="kt")
    branches = choice(body(inside, "d_y"), body([node("Neg", "x", "e_y")], "e_y"), "r")
    turned = node("Transpose", "k", "kt", perm=[0, 1, 3, 2])
    model = build(
        [_loop([turned, branches, node("Identity", "go", "on")], "r")], [*QKV, FLAG, _N], Y, [C]
    )
    scope = "Loop_0/body/If_0/then_branch"
    gone = {scope: names(inside), "Loop_0/body": frozenset({"make_kt"})}
    return Case(model, (scope,), gone, {"": frozenset("c")})


def function_called_twice() -> Case:
    """One rewrite serves calls of different lengths."""
    nodes = [node("Constant", "", "c", value=C), *attention()]
    calls = [call("Attend", "q k v", "one"), call("Attend", "k k v", "two")]
    model = build([*calls, _sum("one two")], QKV, Y)
    scope = "function Attend"
    return Case(with_functions(model, function("Attend", nodes)), (scope,), {scope: names(nodes)})


def _sum(inputs: str) -> NodeProto:
    """Adds what may have other lengths, so that one output shows both."""
    return node("Einsum", inputs, "y", equation="bhsd,bhtd->bhsd")


def function_in_function() -> Case:
    nodes = [node("Constant", "", "c", value=C), *attention()]
    outer = [node("Relu", "q", "r"), call("Attend", "r k v", "a"), node("Neg", "a", "y")]
    model = build([call("Block", "q k v", "y")], QKV, Y)
    with_functions(model, function("Attend", nodes), function("Block", outer))
    scope = "function Attend"
    return Case(model, (scope,), {scope: names(nodes)})


def function_in_branch() -> Case:
    """A body calls a function, and the function holds a body with an attention."""
    inside = attention("i_")
    inner = choice(body(inside, "i_y"), body([node("Neg", "q", "n_y")], "n_y"), "y", "If_1")
    own = function("Pick", [node("Constant", "", "c", value=C), inner], inputs="flag q k v")
    parts = body([call("Pick", "flag q k v", "t")], "t"), body([node("Abs", "q", "e")], "e")
    model = with_functions(build([choice(*parts)], [*QKV, FLAG], Y), own)
    scope = "function Pick/If_1/then_branch"
    gone = {scope: names(inside), "function Pick": frozenset({"make_c"})}
    return Case(model, (scope,), gone)


def captured_mask() -> Case:
    """Keys turned and a mask stretched outside, for inside: both die when they are not needed."""
    outside = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "like"),
        node("Shape", "like", "like_shape"),
        node("Expand", "bias like_shape", "wide"),
    ]
    inside = attention("t_", kt="kt", mask="wide")
    parts = body(inside, "t_y"), body([node("Neg", "q", "e")], "e")
    model = build([*outside, choice(*parts)], [*QKV, FLAG, BIAS], Y, [C])
    scope = "If_0/then_branch"
    return Case(model, (scope,), {scope: names(inside), "": names(outside)}, {"": frozenset("c")})


def mask_inside_and_outside() -> Case:
    """The same mask for an attention outside and one in a branch, with keys that stay in use."""
    outside = [
        node("Where", "keep zero low", "mask"),
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("Relu", "kt", "seen"),
    ]
    first, inside = attention("o_", mask="mask"), attention("t_", q="o_y", kt="kt", mask="mask")
    parts = body(inside, "t_y"), body([node("Neg", "o_y", "e")], "e")
    model = build(
        [*outside, *first, choice(*parts)],
        [*QKV, FLAG, KEEP],
        [*Y, ("seen", FLOAT, ["b", 4, 16, "t"])],
        [C, tensor("zero", 0.0), tensor("low", -np.inf)],
    )
    scope = "If_0/then_branch"
    gone = {"": names(first), scope: names(inside)}
    return Case(model, ("", scope), gone, {"": frozenset("c")})


def output_that_is_captured() -> Case:
    """What the attention makes leaves its body, and a body inside reads it."""
    inside = attention("t_")
    deep = choice(body([node("Neg", "t_y", "a")], "a"), body([node("Abs", "t_y", "b")], "b"), "d")
    deep.name = "If_1"
    other = [node("Neg", "q", "e"), node("Abs", "q", "f")]
    outer = choice(body([*inside, deep], "t_y d"), body(other, "e f"), "y z")
    model = build([outer], [*QKV, FLAG], [*Y, ("z", FLOAT, SHAPE)], [C])
    scope = "If_0/then_branch"
    return Case(model, (scope,), {scope: names(inside)}, {"": frozenset("c")})


def functions_of_one_name() -> Case:
    """The scopes of two functions that only their domains tell apart are told apart."""
    nodes = [node("Constant", "", "c", value=C), *attention()]
    other = function("Attend", nodes)
    other.domain = "org.other"
    calls = [call("Attend", "q k v", "a"), call("Attend", "a k v", "y")]
    calls[1].domain = other.domain
    model = with_functions(build(calls, QKV, Y), function("Attend", nodes), other)
    model.opset_import.append(helper.make_opsetid(other.domain, 1))
    scopes = ("function Attend", "function Attend #2")
    return Case(model, scopes, dict.fromkeys(scopes, names(nodes)))


def scores_from_outside() -> Case:
    """The product stands outside, its Softmax in a branch."""
    nodes = attention()
    parts = body(nodes[3:], "y"), body([node("Neg", "q", "e")], "e")
    model = build([*nodes[:3], choice(*parts, "z")], [*QKV, FLAG], [("z", FLOAT, SHAPE)], [C])
    scope = "If_0/then_branch"
    gone = {scope: names(nodes[3:]), "": names(nodes[:3])}
    return Case(model, (scope,), gone, {"": frozenset("c")})


def shape_of_scores_inside() -> Case:
    """A branch looks at the size of scores that are made outside."""
    nodes = attention()
    inside = [node("Shape", "raw", "sizes"), node("ConstantOfShape", "sizes", "zeros")]
    inside.append(node("MatMul", "zeros v", "t"))
    parts = body(inside, "t"), body([node("Neg", "q", "e")], "e")
    outputs = [*Y, ("z", FLOAT, SHAPE)]
    model = build([*nodes, choice(*parts, "z")], [*QKV, FLAG], outputs, [C])
    gone = {"": names(nodes), "If_0/then_branch": frozenset({"make_sizes"})}
    return Case(model, ("",), gone, {"": frozenset("c")})


def shapes_of_one_name() -> Case:
    """Both branches call the shape alike: too little to tell them apart, so the scores stay."""
    nodes = attention()
    parts = [
        body(
            [
                node("Shape", source, "sizes"),
                node("ConstantOfShape", "sizes", "zeros"),
                node("ReduceSum", "zeros", "none", keepdims=1),
                node("Add", "q none", "t"),
            ],
            "t",
        )
        for source in ("raw", "kt")
    ]
    outputs = [*Y, ("z", FLOAT, SHAPE)]
    model = build([*nodes, choice(parts[0], parts[1], "z")], [*QKV, FLAG], outputs, [C])
    return Case(model, ("",), {"": names(nodes[2:])}, {"": frozenset("c")})


CASES = {
    made.__name__: made
    for made in (
        both_branches,
        same_names_in_both_branches,
        loop,
        scan,
        if_in_loop,
        function_called_twice,
        function_in_function,
        function_in_branch,
        captured_mask,
        mask_inside_and_outside,
        output_that_is_captured,
        functions_of_one_name,
        scores_from_outside,
        shape_of_scores_inside,
        shapes_of_one_name,
    )
}


def feeds_for(model: ModelProto, *, flag: bool, batch: int, s: int, t: int) -> dict[str, Array]:
    """Inputs of the sizes, for whichever a model has."""
    rng, sizes = np.random.default_rng(0), {"b": batch, "s": s, "t": t}
    feeds: dict[str, Array] = {"flag": np.array(flag), "n": np.array(3)}
    for value in model.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif value.name == "keep":
            feeds[value.name] = rng.random(shape) < 0.7
            feeds[value.name][..., 0] = True
    wanted = {value.name for value in model.graph.input}
    return {name: values for name, values in feeds.items() if name in wanted}
