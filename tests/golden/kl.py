"""KL(exact || mine) per position over the stored likeliest ids plus one bucket for all the rest."""

import numpy as np


def kl_top(ids: np.ndarray, logp: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """ids, logp: [T, 64] from real/*.npz; logits: [T, V] of the engine under test. Returns [T], in nats."""
    x = np.asarray(logits, np.float64)
    m = x.max(-1, keepdims=True)
    q = np.take_along_axis(x - m - np.log(np.exp(x - m).sum(-1, keepdims=True)), ids.astype(np.int64), -1)
    p = logp.astype(np.float64)
    rest_p = np.clip(1 - np.exp(p).sum(-1), 1e-12, 1)
    rest_q = np.clip(1 - np.exp(q).sum(-1), 1e-12, 1)
    return (np.exp(p) * (p - q)).sum(-1) + rest_p * np.log(rest_p / rest_q)
