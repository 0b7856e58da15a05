"""Devices and their numbers: every number has a source, none beats its own datasheet."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sparsify.claims import all_claims
from sparsify.cli import cli
from sparsify.devices import device_named
from sparsify.errors import SparsifyError
from sparsify.testing import check_device
from sparsify.workload import (
    ITEM_BYTES,
    Cost,
    MatrixWork,
    SelectorWork,
    Workload,
    at_density,
    choosing,
)
from sparsify_hw.numbers import BASES, QUANTITIES, table

MODELS = sorted(set(table()) - {"host", "cpu-kernel"})
"""Devices that are nothing but their numbers."""

CPUS = ("neoverse-v2", "sapphire-rapids", "sapphire-rapids-amx", "zen4", "zen5")

GPUS = ("a100", "h100", "h200", "l4", "rtx4090", "orin")

workloads = st.builds(
    lambda heads, group, q, k, dim, dtype, density, residual: at_density(
        Workload(
            1,
            heads * group,
            heads,
            q,
            k,
            dim,
            dim,
            dtype,
            residual=residual if density < 1 else "none",
        ),
        density,
    ),
    heads=st.integers(1, 16),
    group=st.sampled_from([1, 4]),
    q=st.sampled_from([1, 16, 77, 1024, 4096]),
    k=st.sampled_from([64, 1000, 4096, 65536]),
    dim=st.sampled_from([32, 64, 128]),
    dtype=st.sampled_from(sorted(ITEM_BYTES)),
    density=st.sampled_from([0.05, 0.3, 1.0]),
    residual=st.sampled_from(["none", "mean", "iso"]),
)


def test_every_number_says_where_it_comes_from():
    rows = [row for numbers in table().values() for row in numbers.values()]
    assert len(rows) > 80
    for row in rows:
        assert row.basis in BASES[:-1]
        assert len(row.source) > 8
        assert row.date[:4].isdigit()


def test_every_quantity_is_used_and_has_a_unit():
    used = {name for numbers in table().values() for name in numbers}
    assert used == set(QUANTITIES)


def test_an_h100_multiplies_dense_matrices_at_989():
    """The sheet's 1979 TFLOP/s counts zeros of structured sparsity."""
    assert table()["h100"]["bfloat16_flops"].value == 989.4e12


@pytest.mark.parametrize("name", GPUS)
@given(work=workloads)
def test_no_gpu_beats_its_datasheet(name, work):
    numbers = {n: row.value for n, row in table()[name].items()}
    cost = device_named(name).cost(work)
    assert 2 * work.macs / cost.seconds <= numbers[f"{work.dtype}_flops"] * (1 + 1e-9)
    read = work.io_bytes if work.density == 1 else 0
    assert read / cost.seconds <= numbers["memory_bandwidth"] * (1 + 1e-9)
    assert cost.joules <= numbers["watts"] * cost.seconds * (1 + 1e-9)


@pytest.mark.parametrize("name", CPUS)
@given(work=workloads)
def test_no_cpu_beats_its_datasheet(name, work):
    numbers = {n: row.value for n, row in table()[name].items()}
    per_cycle = max(numbers.get(f"{kind}_per_cycle", 0) for kind in (work.dtype, "float32"))
    cost = device_named(name).cost(work)
    peak = numbers["cores"] * numbers["clock_hertz"] * per_cycle
    assert 2 * work.macs / cost.seconds <= peak * (1 + 1e-9)
    read = work.io_bytes if work.density == 1 else 0
    assert read / cost.seconds <= numbers["memory_bandwidth"] * (1 + 1e-9)
    assert cost.joules <= numbers["watts"] * cost.seconds * (1 + 1e-9)


def test_choosing_reads_at_the_rate_of_the_memory_too():
    work = at_density(Workload(8, 8, 8, 1, 65536, 128, 128, k_block=16), 0.1)
    with_choice = replace(work, selector=choosing(work))
    numbers = table()["zen4"]
    added = device_named("zen4").cost(with_choice).parts["selector"]
    read = with_choice.selector.elements * ITEM_BYTES["float32"]
    assert read / added <= numbers["memory_bandwidth"].value * (1 + 1e-9)


def test_matrix_units_multiply_bfloat16_and_nothing_else():
    work = Workload(1, 16, 16, 4096, 4096, 64, 64)
    half = replace(work, dtype="bfloat16")
    without, units = device_named("sapphire-rapids"), device_named("sapphire-rapids-amx")
    assert units.cost(work).seconds == without.cost(work).seconds
    assert units.cost(half).seconds < 0.5 * without.cost(half).seconds
    product = MatrixWork(10**12, 10**9, "bfloat16")
    assert units.dense(product).seconds < 0.1 * without.dense(product).seconds


def test_half_of_the_cores_take_twice_as_long(tmp_path):
    path = tmp_path / "half.toml"
    path.write_text('like = "zen4"\ncores = 48\n', encoding="utf-8")
    work = Workload(1, 96, 96, 4096, 4096, 64, 64)
    half, whole = device_named(str(path)).cost(work), device_named("zen4").cost(work)
    assert half.seconds == pytest.approx(2 * whole.seconds, rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_devices_keep_the_contract(name):
    check_device(device_named(name))


@pytest.mark.parametrize(
    ("cost", "says"),
    [
        (Cost(math.nan, 1, "compute"), "nan seconds"),
        (Cost(1, -1, "compute"), "-1 joules"),
        (Cost(1, 1, "magic"), "bound by 'magic'"),
        (Cost(1, 1, "compute", {"warp": 1.0}), "parts ['warp']"),
        (Cost(1, 1, "compute", {"qk": 0.5}), "parts that are not the whole"),
    ],
)
def test_a_device_that_breaks_the_contract_is_told(cost, says):
    device = SimpleNamespace(name="odd", cost=lambda work: cost)
    with pytest.raises(AssertionError) as caught:
        check_device(device)
    assert says in str(caught.value)


def test_a_device_that_skips_backwards_is_told():
    device = SimpleNamespace(name="odd", cost=lambda work: Cost(1 / work.density, 1, "compute"))
    with pytest.raises(AssertionError, match="takes less time for more keys"):
        check_device(device)


@pytest.mark.parametrize("name", MODELS)
def test_less_is_faster_and_choosing_costs(name):
    device = device_named(name)
    dense = Workload(1, 16, 16, 16384, 16384, 64, 64, "float16")
    sparse = at_density(dense, 0.1)
    chosen = replace(sparse, selector=SelectorWork(10**10, 10**8, 10**6, 2))
    assert device.cost(sparse).seconds < 0.5 * device.cost(dense).seconds
    assert device.cost(sparse).joules < device.cost(dense).joules
    assert device.cost(sparse).seconds <= device.cost(chosen).seconds
    assert device.cost(sparse).joules < device.cost(chosen).joules


def test_a_token_reads_the_keys_at_the_rate_of_the_memory():
    """One query per head: nothing is computed twice, so memory decides."""
    work = Workload(1, 32, 8, 1, 65536, 128, 128, "bfloat16")
    cost = device_named("h100").cost(work)
    assert cost.bound == "memory"
    assert cost.seconds == pytest.approx(work.io_bytes / 3.35e12, rel=0.1)


def test_unbalanced_rows_take_longer_at_equal_density():
    """A few long rows keep one multiprocessor busy while the others wait."""
    even = Workload(1, 1, 1, 16896, 16896, 64, 64, "float16", kept=((1024, 264),))
    odd = replace(even, kept=((512, 256), (16896, 8)))
    cost = device_named("tensorcore-sparse").cost
    assert odd.density == pytest.approx(even.density, rel=0.02)
    assert cost(even).parts["imbalance"] < 0.2 * cost(even).seconds
    assert cost(odd).seconds > 3 * cost(even).seconds
    assert cost(odd).parts["imbalance"] > 0.5 * cost(odd).seconds


def test_a_file_changes_numbers_of_a_device(tmp_path):
    file = tmp_path / "half.toml"
    file.write_text('name = "half"\nlike = "h100"\nmemory_bandwidth = 1.675e12\n', encoding="utf-8")
    device = device_named(str(file))
    work = MatrixWork(1.0, 1e12)
    assert device.name == "half"
    whole = device_named("h100").dense(work)
    assert device.dense(work).seconds == pytest.approx(2 * whole.seconds, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("like = ", "not TOML"),
        ("memory_bandwidth = 1e12", "say which device it is like"),
        ('like = "h10"', "did you mean 'h100'"),
        ('like = "h100"\nmemory_bandwidth = -1', "memory_bandwidth is -1; give a positive number"),
        ('like = "h100"\nmemory_bandwidth = 0', "give a positive number"),
        ('like = "h100"\nmemory_bandwidth = nan', "give a number (bytes/s from memory)"),
        ('like = "h100"\nmemory_bandwidth = "fast"', "give a number"),
        ('like = "h100"\nefficiency = 1.5', "give at most 1"),
        ('like = "h100"\nmultiprocessors = 0.5', "give a whole number"),
        ('like = "h100"\nidle_watts = 1000', "idle_watts is above watts"),
        ('like = "h100"\nmemory_bandwith = 1', "did you mean 'memory_bandwidth'"),
        ('like = "h100"\nname = "a100"', "there is a device 'a100' already"),
        ('like = "h100"\nname = 3', "the name is 3"),
        ('like = "h100"\nname = ""', "the name is ''"),
        ('like = "h100"\nname = "a\\nb"', "give a printable text"),
        ('like = "zen4"\ncores = 0', "cores is 0; give a positive number"),
    ],
)
def test_nonsense_in_a_file_is_one_clear_line(text, says, tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SparsifyError) as caught:
        device_named(str(file))
    assert says in str(caught.value)
    assert "my.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_device_are_one_clear_line(tmp_path):
    with pytest.raises(SparsifyError, match="cannot be read"):
        device_named(str(tmp_path / "none.toml"))
    with pytest.raises(SparsifyError, match="did you mean 'h100'"):
        device_named("h10")


@pytest.mark.parametrize("density", [0, -0.5, 1.5, math.nan])
def test_a_density_is_a_share(density):
    with pytest.raises(SparsifyError, match="above 0, at most 1"):
        at_density(Workload(1, 1, 1, 64, 64, 64, 64), density)


def test_claims_say_what_is_reconstructed():
    found = all_claims()
    assert {name for name, _ in found} == {
        "tensorcore-sparse",
        "dsa-accelerator",
        "sssa-accelerator",
    }
    for _, claim in found:
        assert len(claim.reconstructed) > 20
        assert claim.setting
    published = {claim.published for _, claim in found}
    assert {"+8.7%", "-54.3%", "4.5x", "152.6x", "-56.6%", "+2.6%"} <= published


def test_the_command_prints_claims():
    text = CliRunner().invoke(cli, ["claims"]).output
    assert "published -54.3%" in text
    rows = json.loads(CliRunner().invoke(cli, ["claims", "--json"]).output)
    assert len(rows) == len(all_claims())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"batch": 1.5}, "batch is 1.5"),
        ({"heads": True}, "heads is True"),
        ({"bias_heads": -1}, "from 0 on"),
        ({"bias_heads": 99}, "numbers that fit"),
        ({"mask_heads": 99}, "numbers that fit"),
        ({"kv_heads": 3}, "numbers that fit"),
        ({"dtype": "int8"}, "no type 'int8'"),
        ({"residual": "all"}, "no residual 'all'"),
        ({"kept": ((65, 4),)}, "of 64 keys"),
        ({"kept": ((32, 3),)}, "there are 4"),
    ],
)
def test_nonsense_in_a_workload_is_one_clear_line(change, says):
    with pytest.raises(SparsifyError) as caught:
        replace(Workload(1, 4, 4, 64, 64, 16, 16), **change)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("amounts", [{"bits": 3}, {"macs": -1}, {"calls": -1}, {"macs": math.nan}])
def test_the_work_of_choosing_makes_sense(amounts):
    with pytest.raises(SparsifyError, match="bits are one of"):
        SelectorWork(**amounts)
