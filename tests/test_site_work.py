"""What a site asks of a device, against counting every block by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from graphs import Form, model_of, save
from hypothesis import given
from hypothesis import strategies as st

from sparsify import find_sites, load
from sparsify.site_work import exact_work, pattern_work
from sparsify.spec import make_pattern, parse_spec


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    loaded = load(save(model_of(Form()), tmp_path_factory.mktemp("site")))
    (found,) = find_sites(loaded).sites
    return replace(found, q_heads=3, kv_heads=3, batch=2, q_length=None, k_length=None)


def at(site, length):
    return replace(site, q_length=length, k_length=length)


def counted(work, keys_of_block):
    """Count the query blocks of all heads and batches by the keys they compute."""
    found = Counter()
    for first in range(0, work.q_length, work.q_block):
        last = min(first + work.q_block, work.q_length) - 1
        found[keys_of_block(first, last)] += work.heads * work.batch
    return tuple(sorted(found.items()))


def test_without_lengths_nothing_is_known(site):
    assert exact_work(site) is None
    assert pattern_work(site, make_pattern(parse_spec("window:size=64")), "none") is None


def test_sizes_come_from_the_site_and_the_length(site):
    work = exact_work(at(site, 300))
    assert (work.batch, work.heads, work.kv_heads) == (2, 3, 3)
    assert (work.q_length, work.k_length, work.head_dim) == (300, 300, 16)
    assert work.density == 1
    assert work.bias_heads == 0


@given(length=st.integers(1, 700), window=st.sampled_from([-1, 0, 100]))
def test_a_causal_site_computes_what_the_last_query_of_a_block_sees(site, length, window):
    work = exact_work(at(replace(site, causal=True, left_window=window), length))

    def keys(first, last):
        before = np.arange(length)[None, :] <= np.arange(first, last + 1)[:, None]
        near = np.arange(length)[None, :] >= np.arange(first, last + 1)[:, None] - window
        seen = before & near if window >= 0 else before
        return int(seen.any(axis=0).sum())

    assert work.kept == counted(work, keys)


@given(queries=st.integers(1, 200), past=st.integers(0, 300))
def test_queries_behind_a_cache_see_all_of_it(site, queries, past):
    placed = replace(
        site, causal=True, bottom_right=True, q_length=queries, k_length=past + queries
    )
    work = exact_work(placed)
    assert work.kept == counted(work, lambda first, last: past + last + 1)


@given(length=st.integers(1, 700), causal=st.booleans())
def test_a_static_pattern_is_counted_block_by_block(site, length, causal):
    pattern = make_pattern(parse_spec("diagonal"))
    work = pattern_work(at(replace(site, causal=causal), length), pattern, "mean")
    assert work.kept == counted(work, lambda first, last: min(64, length - first))
    assert work.residual == "mean"
    assert work.selector.calls == 0


@given(length=st.integers(64, 900), density=st.sampled_from([0.1, 0.5, 1.0]))
def test_a_dynamic_pattern_keeps_its_share_and_has_to_choose(site, length, density):
    pattern = make_pattern(parse_spec(f"mean_key:density={density}"))
    work = pattern_work(at(site, length), pattern, "none")
    columns = -(-length // 16)
    keys = min(max(round(density * columns), 1) * 16, length)
    assert work.kept == ((keys, work.blocks),)
    assert work.selector.scores == 2 * 3 * length * columns
    assert work.selector.macs == work.selector.scores * 16


def test_a_share_by_mass_is_not_known_before_running(site):
    assert pattern_work(at(site, 512), make_pattern(parse_spec("mean_key:tau=0.9")), "none") is None


def test_each_head_may_keep_its_own_share(site):
    pattern = make_pattern(parse_spec("mean_key:density=0.25/0.5/1.0"))
    work = pattern_work(at(site, 640), pattern, "none")
    assert work.kept == ((160, 20), (320, 20), (640, 20))


def test_shares_for_other_heads_than_are_known_are_not_guessed(site):
    pattern = make_pattern(parse_spec("mean_key:density=0.25/0.5"))
    unknown = replace(at(site, 640), q_heads=None, kv_heads=None)
    assert pattern_work(unknown, pattern, "none") is None
    assert pattern_work(at(site, 640), pattern, "none") is None
