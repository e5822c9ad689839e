"""What the boxes of SSDM and its cascade share: norms, and momenta of local steps."""

import numpy as np


def length(v, norm):
    return np.sqrt(v @ v) if norm == "l2" else max(abs(e) for e in v)


def momenta(A, b, x, m, h, K, *, lr, beta, mu):
    """Each worker's momentum after K local steps with heavy-ball momentum mu, in place."""
    for i in range(len(b)):
        y, total = x.copy(), np.zeros(len(x))
        for _ in range(K):
            h[i] = mu * h[i] + A[i] @ (y - b[i])
            y = y - lr * h[i]
            total = total + h[i]
        m[i] = beta * m[i] + (1 - beta) * total
