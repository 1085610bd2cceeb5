"""What a step costs on this machine, learned from the steps before, and how much prefill it may therefore take.

A step's seconds are modelled as fixed + per_decode * decode tokens + per_prefill * prefill tokens, whose coefficients
drift: contexts grow, and other programs run. A Kalman filter follows them. It keeps apart what steps of different make
have told apart even while thousands of like steps tell nothing new; plain least squares with forgetting does not, and
then takes the noise of such steps for knowledge.
Source: L. Ljung, System Identification: Theory for the User, 2nd edition, section 11.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NOISE = 0.1  # of a step's seconds that the model does not explain (standard deviation, relative)
_DRIFT = 0.01  # of a coefficient from one step to the next
_MOST_DOUBT = 0.3  # about a coefficient, however long nothing was learned about it
_LEAST = 1e-3  # a coefficient's least share of a step's seconds, so that it can grow again
_AIM = 0.9  # of the bound: steps vary, and a token also has to be sampled and sent


class StepCost:
    """The model, and its use. bound: how many times the time of its decode tokens alone a step may take."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._mean: NDArray[np.float64] | None = None  # fixed, per decode token, per prefill token: seconds
        self._covariance = np.zeros((3, 3))

    def observe(self, num_decode: int, num_prefill: int, seconds: float) -> None:
        """A step with so many tokens, at least one, took so long."""
        tokens = np.array([1.0, num_decode, num_prefill])
        even = seconds / np.array([1.0, num_decode + num_prefill, num_decode + num_prefill])
        if self._mean is None:
            self._mean = even / 2
            self._covariance = np.diag(self._mean**2)
            return
        self._let_drift(self._mean)
        spread = self._covariance @ tokens
        gain = spread / (tokens @ spread + (_NOISE * seconds) ** 2)
        self._covariance -= np.outer(gain, spread)
        self._mean = np.maximum(self._mean + gain * (seconds - tokens @ self._mean), _LEAST * even)

    def prefill_within_bound(self, num_decode: int) -> int | None:
        """Prefill tokens that a step with num_decode decode tokens may take; None before the first step."""
        if self._mean is None:
            return None
        fixed, per_decode, per_prefill = self._mean
        return max(0, int((self._bound * _AIM - 1.0) * (fixed + per_decode * num_decode) / per_prefill))

    def _let_drift(self, mean: NDArray[np.float64]) -> None:
        self._covariance += np.diag((_DRIFT * mean) ** 2)
        shrink = np.minimum(1.0, _MOST_DOUBT * mean / np.sqrt(self._covariance.diagonal()))
        self._covariance *= np.outer(shrink, shrink)
