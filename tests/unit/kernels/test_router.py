"""The router oracle against a search written the slow way."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkmesh_runtime.kernels.router import route

# Few distinct values, so that ties are common.
COARSE = st.integers(-3, 3).map(float)


def _slow(logits: list[float], bias: list[float], top_k: int) -> tuple[list[int], list[float]]:
    score = [math.sqrt(math.log1p(math.exp(x))) for x in logits]
    left, chosen = list(range(len(logits))), []
    for _ in range(top_k):
        best = left[0]
        for expert in left:
            if score[expert] + bias[expert] > score[best] + bias[best] + 1e-12:
                best = expert
        chosen.append(best)
        left.remove(best)
    total = sum(score[e] for e in chosen)
    return chosen, [score[e] / total * 1.5 for e in chosen]


@given(st.data(), st.integers(1, 12))
def test_agrees_with_the_slow_search(data: st.DataObject, experts: int) -> None:
    logits = data.draw(st.lists(COARSE, min_size=experts, max_size=experts))
    bias = data.draw(st.lists(COARSE, min_size=experts, max_size=experts))
    top_k = data.draw(st.integers(1, experts))
    got = route([logits], bias, top_k)
    chosen, weights = _slow(logits, bias, top_k)
    assert got.experts[0].tolist() == chosen
    assert got.weights[0] == pytest.approx(weights, rel=1e-12)


def test_ties_go_to_the_lower_id_and_show_in_the_margin() -> None:
    got = route(np.zeros((1, 8)), np.zeros(8), top_k=3)
    assert got.experts.tolist() == [[0, 1, 2]]
    assert got.margin.tolist() == [0.0]
    assert got.weights[0] == pytest.approx([0.5] * 3)


def test_bias_ranks_but_does_not_weigh() -> None:
    got = route([[0.0, 5.0, 5.0]], [9.0, 0.0, 0.0], top_k=2)
    assert got.experts.tolist() == [[0, 1]]
    assert got.weights[0, 0] < got.weights[0, 1]
    assert got.weights.sum() == pytest.approx(1.5)


def test_extreme_logits_stay_finite() -> None:
    got = route([[-1e4, 1e4, -1e4]], np.zeros(3), top_k=3)
    assert got.experts.tolist() == [[1, 0, 2]]
    assert np.isfinite(got.weights).all()
    assert (route([[-1e4]], [0.0], top_k=1).weights == 0).all()


def test_refusals_name_what_was_seen() -> None:
    with pytest.raises(ValueError, match=r"logit at \(0, 1\) is nan"):
        route([[0.0, np.nan]], [0.0, 0.0], top_k=1)
    with pytest.raises(ValueError, match=r"top_k is 3, wanted 1\.\.2"):
        route([[0.0, 0.0]], [0.0, 0.0], top_k=3)
    with pytest.raises(ValueError, match=r"bias \(3,\)"):
        route([[0.0, 0.0]], [0.0] * 3, top_k=1)
