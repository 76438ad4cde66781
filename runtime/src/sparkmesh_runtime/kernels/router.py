"""Oracle of the expert router: which experts a token goes to, and with which weights.

Rules (DeepSeek V4.1 Flash: scoring "sqrtsoftplus", method "noaux_tc", 384 experts, top 6, factor 1.5):

* score = sqrt(softplus(logit)); ranking is by score + bias, so the bias decides who is chosen but never the weight;
* larger first, ties to the lower expert id;
* weight = score / (sum of the chosen scores + 1e-20) * factor.

Computed in float64. A float32 kernel may legitimately rank two experts differently when their keys are closer than its
rounding; ``margin`` tells the caller where that can happen, so a comparison need not guess a tolerance.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

WEIGHT_EPS = 1e-20
"""Added to the sum of the chosen scores (DeepSeek TileKernels, moe_topk_gate_forward)."""


@dataclass(frozen=True)
class Routes:
    """The router's answer for T tokens."""

    experts: NDArray[np.int64]
    """(T, k) expert ids, best first."""
    weights: NDArray[np.float64]
    """(T, k) weights in the order of ``experts``; each row sums to the routing factor (or to 0 if all scores are 0)."""
    margin: NDArray[np.float64]
    """(T,) smallest gap between neighbours among the k + 1 best keys; infinite when there is only one expert."""


def route(logits: ArrayLike, bias: ArrayLike, top_k: int = 6, factor: float = 1.5) -> Routes:
    """Route T tokens. ``logits`` is (T, E), ``bias`` is (E,), both finite, 1 <= top_k <= E.

    Raises ValueError otherwise, naming what was seen.
    """
    rows = np.asarray(logits, dtype=np.float64)
    shift = np.asarray(bias, dtype=np.float64)
    if rows.ndim != 2 or shift.shape != rows.shape[1:]:
        raise ValueError(f"router: logits {rows.shape} and bias {shift.shape}, wanted (T, E) and (E,): check the gate")
    if not 1 <= top_k <= rows.shape[1]:
        raise ValueError(f"router: top_k is {top_k}, wanted 1..{rows.shape[1]} (the number of experts): lower top_k")
    for name, array in (("logit", rows), ("bias", shift)):
        strange = ~np.isfinite(array)
        if strange.any():
            at = tuple(int(i) for i in np.argwhere(strange)[0])
            raise ValueError(f"router: {name} at {at} is {array[at]}, wanted a finite number: look for it upstream")

    score = np.sqrt(np.logaddexp(0.0, rows))
    key = score + shift
    order = np.argsort(-key, axis=1, kind="stable")
    experts = order[:, :top_k].astype(np.int64)
    chosen = np.take_along_axis(score, experts, axis=1)
    weights = chosen / (chosen.sum(axis=1, keepdims=True) + WEIGHT_EPS) * factor
    best = np.take_along_axis(key, order[:, : top_k + 1], axis=1)
    margin = (best[:, :-1] - best[:, 1:]).min(axis=1, initial=np.inf)
    return Routes(experts, weights, margin)
