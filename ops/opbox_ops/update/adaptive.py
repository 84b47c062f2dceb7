"""adam_update, rmsprop_update, rmspropalex_update, ftrl_update, ftml_update: steps scaled by the gradient's history.

With d = clip(rescale_grad * grad + wd * weight), squares and roots element by element:

    adam_update         mean = beta1 * mean + (1 - beta1) * d;  var = beta2 * var + (1 - beta2) * d^2
                        weight - lr * mean / (sqrt(var) + epsilon)           (Kingma and Ba 2014; no bias correction)
    rmsprop_update      n = gamma1 * n + (1 - gamma1) * d^2;  weight - lr * d / sqrt(n + epsilon)
    rmspropalex_update  n as above;  g = gamma1 * g + (1 - gamma1) * d
                        delta = gamma2 * delta - lr * d / sqrt(n - g^2 + epsilon);  weight + delta     (Graves 2013)
    ftml_update         v = beta2 * v + (1 - beta2) * d^2;  e = (1 - beta1^t) / lr * (sqrt(v / (1 - beta2^t)) + epsilon)
                        z = beta1 * z + (1 - beta1) * d - (e - beta1 * d_old) * weight;  -z / e        (Zheng 2017)

ftrl_update takes d = clip(rescale_grad * grad) (McMahan 2013):

    z += d - (sqrt(n + d^2) - sqrt(n)) * weight / lr;  n += d^2
    (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd) where |z| > lamda1, else 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..compute import Array
from ..params import Bool, Field, Float, Params, PositiveInt
from .family import UpdateParams, clip_weights, declare


class AdamParams(UpdateParams):
    positional: ClassVar[tuple[str, ...]] = ("lr", "beta1", "beta2", "epsilon")
    beta1: Float = Field(0.9, description="How much of the mean is kept.")
    beta2: Float = Field(0.999, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-8, description="Keeps the division from zero.")
    lazy_update: Bool = Field(True, description="Accepted; it concerns sparse gradients, and every array is dense.")


class RmspropParams(UpdateParams):
    positional: ClassVar[tuple[str, ...]] = ("lr", "gamma1", "epsilon")
    gamma1: Float = Field(0.95, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-8, description="Keeps the division from zero.")
    clip_weights: Float = Field(-1.0, description="Limit of the new weight's elements; negative: none.")


class RmspropAlexParams(RmspropParams):
    positional: ClassVar[tuple[str, ...]] = ("lr", "gamma1", "gamma2", "epsilon")
    gamma2: Float = Field(0.9, description="How much of the last step is kept.")


class FtrlParams(UpdateParams):
    positional: ClassVar[tuple[str, ...]] = ("lr", "lamda1", "beta")
    lamda1: Float = Field(0.01, description="Strength of the L1 penalty.")
    beta: Float = Field(1.0, description="Added to the root of the sum of squares.")


class FtmlParams(Params):
    lr: Float = Field(description="Learning rate.")
    beta1: Float = Field(0.6, description="How much of the old step is kept.")
    beta2: Float = Field(0.999, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-8, description="Keeps the division from zero.")
    t: PositiveInt = Field(description="The number of this step, from 1.")
    wd: Float = Field(0.0, description="Weight decay: adds wd * weight to the gradient.")
    rescale_grad: Float = Field(1.0, description="Factor on the gradient.")
    clip_grad: Float = Field(-1.0, description="Limit of the gradient's elements; negative: none.")


def _adam(p: AdamParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array) -> None:
    mean, var = states
    mean *= p.beta1
    np.multiply(d, 1.0 - p.beta1, out=t)
    mean += t
    _mean_square(var, d, p.beta2, t)
    np.sqrt(var, out=t)
    t += p.epsilon
    np.divide(mean, t, out=t)
    t *= p.lr
    np.subtract(w, t, out=new)


def _mean_square(state: Array, d: Array, keep: float, t: Array) -> None:
    """state = keep * state + (1 - keep) * d^2, with t as scratch."""
    np.multiply(d, d, out=t)
    t *= 1.0 - keep
    state *= keep
    state += t


def _rmsprop(p: RmspropParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array) -> None:
    (n,) = states
    _mean_square(n, d, p.gamma1, t)
    np.add(n, p.epsilon, out=t)
    np.sqrt(t, out=t)
    d /= t
    d *= p.lr
    np.subtract(w, d, out=new)
    clip_weights(p, new)


def _rmspropalex(
    p: RmspropAlexParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array
) -> None:
    n, g, delta = states
    _mean_square(n, d, p.gamma1, t)
    g *= p.gamma1
    np.multiply(d, 1.0 - p.gamma1, out=t)
    g += t
    np.multiply(g, g, out=t)
    np.subtract(n, t, out=t)
    t += p.epsilon
    np.sqrt(t, out=t)
    d /= t
    d *= p.lr
    delta *= p.gamma2
    delta -= d
    np.add(w, delta, out=new)
    clip_weights(p, new)


def _ftrl(p: FtrlParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array) -> None:
    z, n = states
    z += d
    np.multiply(d, d, out=d)
    np.sqrt(n, out=t)
    n += d
    np.sqrt(n, out=d)
    np.subtract(d, t, out=t)
    t *= w
    t /= p.lr
    z -= t
    d += p.beta
    d /= p.lr
    d += p.wd
    np.sign(z, out=t)
    t *= p.lamda1
    t -= z
    t /= d
    np.absolute(z, out=d)
    np.greater(d, p.lamda1, out=d)
    np.multiply(t, d, out=new)


def _ftml(p: FtmlParams, w: Array, d: Array, t: Array, states: Sequence[Array], new: Array, grad: Array) -> None:
    held, v, z = states
    _mean_square(v, d, p.beta2, t)
    z *= p.beta1
    d *= 1.0 - p.beta1
    z += d
    np.divide(v, 1.0 - p.beta2**p.t, out=t)
    np.sqrt(t, out=t)
    t += p.epsilon
    t *= (1.0 - p.beta1**p.t) / p.lr
    held *= p.beta1
    np.subtract(t, held, out=d)
    d *= w
    z -= d
    held[...] = t
    np.divide(z, t, out=d)
    np.negative(d, out=new)


_ADAM = """
    mean = beta1 * mean + (1 - beta1) * q;
    var = beta2 * var + (1 - beta2) * q * q;
    y = x - lr * mean / (sqrt(var) + epsilon);"""
_CLIP_WEIGHTS = "if (clip_weights >= 0) y = y > clip_weights ? clip_weights : y < -clip_weights ? -clip_weights : y;"
_RMSPROP = f"""
    n = gamma1 * n + (1 - gamma1) * q * q;
    y = x - lr * q / sqrt(n + epsilon); {_CLIP_WEIGHTS}"""
_RMSPROPALEX = f"""
    n = gamma1 * n + (1 - gamma1) * q * q;
    g = gamma1 * g + (1 - gamma1) * q;
    delta = gamma2 * delta - lr * q / sqrt(n - g * g + epsilon);
    y = x + delta; {_CLIP_WEIGHTS}"""
_FTRL = """
    z += q - (sqrt(n + q * q) - sqrt(n)) * x / lr;
    n += q * q;
    y = abs(z) > lamda1 ? ((z > 0 ? lamda1 : -lamda1) - z) / ((beta + sqrt(n)) / lr + wd) : 0;"""
_FTML = """
    v = beta2 * v + (1 - beta2) * q * q;
    auto e = (1 - power1) / lr * (sqrt(v / (1 - power2)) + epsilon);
    z = beta1 * z + (1 - beta1) * q - (e - beta1 * d) * x;
    d = e;
    y = -z / e;"""

declare("adam_update", AdamParams, ("mean", "var"), _adam, _ADAM, "decay first", "One step of Adam.")
declare("rmsprop_update", RmspropParams, ("n",), _rmsprop, _RMSPROP, "decay first", "One step of RMSProp.")
declare(
    "rmspropalex_update",
    RmspropAlexParams,
    ("n", "g", "delta"),
    _rmspropalex,
    _RMSPROPALEX,
    "decay first",
    "One step of Graves' RMSProp.",
)
declare("ftrl_update", FtrlParams, ("z", "n"), _ftrl, _FTRL, "no decay", "One step of FTRL-proximal.")
declare(
    "ftml_update",
    FtmlParams,
    ("d", "v", "z"),
    _ftml,
    _FTML,
    "decay first",
    "One step of FTML.",
    scalars=lambda p: {"power1": p.beta1**p.t, "power2": p.beta2**p.t},
)
