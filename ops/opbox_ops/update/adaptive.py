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

All arrays and the output, the new weight, have one shape.
"""

from __future__ import annotations

from typing import ClassVar

from ..params import Bool, Field, Float, Params, PositiveInt
from .family import UpdateParams, declare


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


_ADAM = """
mean = beta1 * mean + (1 - beta1) * q
var = beta2 * var + (1 - beta2) * square(q)
y = x - lr * (mean / (sqrt(var) + epsilon))"""
_RMSPROP = """
n = gamma1 * n + (1 - gamma1) * square(q)
y = x - lr * (q / sqrt(n + epsilon))"""
_RMSPROPALEX = """
n = gamma1 * n + (1 - gamma1) * square(q)
g = gamma1 * g + (1 - gamma1) * q
delta = gamma2 * delta - lr * (q / sqrt(n - square(g) + epsilon))
y = x + delta"""
_FTRL = """
z = z + q - (sqrt(n + square(q)) - sqrt(n)) * x / lr
n = n + square(q)
y = (sign(z) * lamda1 - z) / ((sqrt(n) + beta) / lr + wd) * (abs(z) > lamda1)"""
_FTML = """
v = beta2 * v + (1 - beta2) * square(q)
e = (sqrt(v / (1 - beta2 ** t)) + epsilon) * ((1 - beta1 ** t) / lr)
z = beta1 * z + (1 - beta1) * q - (e - beta1 * d) * x
d = e
y = -(z / e)"""

_ADAM_CUDA = """
    mean = beta1 * mean + (1 - beta1) * q;
    var = beta2 * var + (1 - beta2) * q * q;
    y = x - lr * mean / (sqrt(var) + epsilon);"""
_CLIP_CUDA = "if (clip_weights >= 0) y = y > clip_weights ? clip_weights : y < -clip_weights ? -clip_weights : y;"
_RMSPROP_CUDA = f"""
    n = gamma1 * n + (1 - gamma1) * q * q;
    y = x - lr * q / sqrt(n + epsilon); {_CLIP_CUDA}"""
_RMSPROPALEX_CUDA = f"""
    n = gamma1 * n + (1 - gamma1) * q * q;
    g = gamma1 * g + (1 - gamma1) * q;
    delta = gamma2 * delta - lr * q / sqrt(n - g * g + epsilon);
    y = x + delta; {_CLIP_CUDA}"""
_FTRL_CUDA = """
    z += q - (sqrt(n + q * q) - sqrt(n)) * x / lr;
    n += q * q;
    y = abs(z) > lamda1 ? ((z > 0 ? lamda1 : -lamda1) - z) / ((beta + sqrt(n)) / lr + wd) : 0;"""
_FTML_CUDA = """
    v = beta2 * v + (1 - beta2) * q * q;
    auto e = (1 - power1) / lr * (sqrt(v / (1 - power2)) + epsilon);
    z = beta1 * z + (1 - beta1) * q - (e - beta1 * d) * x;
    d = e;
    y = -z / e;"""

declare("adam_update", AdamParams, ("mean", "var"), _ADAM, _ADAM_CUDA, "decay first", "One step of Adam.")
declare("rmsprop_update", RmspropParams, ("n",), _RMSPROP, _RMSPROP_CUDA, "decay first", "One step of RMSProp.")
declare(
    "rmspropalex_update",
    RmspropAlexParams,
    ("n", "g", "delta"),
    _RMSPROPALEX,
    _RMSPROPALEX_CUDA,
    "decay first",
    "One step of Graves' RMSProp.",
)
declare("ftrl_update", FtrlParams, ("z", "n"), _FTRL, _FTRL_CUDA, "no decay", "One step of FTRL-proximal.")
declare(
    "ftml_update",
    FtmlParams,
    ("d", "v", "z"),
    _FTML,
    _FTML_CUDA,
    "decay first",
    "One step of FTML.",
    scalars=lambda p: {"power1": p.beta1**p.t, "power2": p.beta2**p.t},
)
