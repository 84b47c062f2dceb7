"""The cells of RNN on a GPU: of a step one product with the state, and one kernel for all that is left.

A thread has one element of one sample's state, with all of its gates: it reads them once and writes them once, the
least possible. `rnn.steps` has the formulas. Sigmoids are (1 + tanh(x / 2)) / 2. Samples whose sequence has ended
(`valid` is 0) keep their state. States of a step lie in rows of `width`, a direction's from `column` on; those before
the first step in rows of their own.

Backward is told the gradient of what a step gave: that of the output, and `gstate` of the step behind. It leaves the
gates' gradients, and in `gstate` what of it passes the gates by: the product of the gates' gradients with the weights
is added to that.
"""

from __future__ import annotations

from .kernel import KERNELS, KernelTemplate, Moved

__all__ = ["GRU", "GRU_BACK", "LSTM", "LSTM_BACK", "PLAIN", "PLAIN_BACK", "THREADS"]

THREADS = 256
_STATES = 128 * 256
"""Elements of the examples' states: 128 samples of 256."""

_DECLARES = """__device__ A opbox_sigmoid(A x) { return A(0.5) * tanh(A(0.5) * x) + A(0.5); }
"""
_BEFORE = "const A *before, int before_width, int before_column"
_SIZES = "int elements, int hidden, int width, int column, const char *valid, int masked"
_BEGIN = """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int sample = number / hidden, h = number % hidden;
  const int place = sample * width + column + h;
  const bool ended = masked && !valid[sample];
"""
_FOUR = """  const int at = sample * 4 * hidden + h, f_at = at + hidden, n_at = f_at + hidden, o_at = n_at + hidden;
"""
_STATE_BEFORE = "before[sample * before_width + before_column + h]"


def _moved(arrays: int, biases: int = 0) -> Moved:
    """The bytes that a kernel moves: `arrays` of the states' size, and biases of a sample's."""
    return Moved(4 * (arrays * _STATES + biases * 256), 4 * (arrays * _STATES + biases * 256))


LSTM = KernelTemplate(
    "opbox_lstm",
    "A *gates, const A *i2h_bias, const A *h2h_bias, A *cells, const A *cells_before, A *states, "
    f"{_BEFORE}, A low, A high, int clips, {_SIZES}",
    f"""{_BEGIN}{_FOUR}  const int hf = h + hidden, hn = hf + hidden, ho = hn + hidden;
  const A i = opbox_sigmoid(gates[at] + (i2h_bias[h] + h2h_bias[h]));
  const A f = opbox_sigmoid(gates[f_at] + (i2h_bias[hf] + h2h_bias[hf]));
  const A n = tanh(gates[n_at] + (i2h_bias[hn] + h2h_bias[hn]));
  const A o = opbox_sigmoid(gates[o_at] + (i2h_bias[ho] + h2h_bias[ho]));
  gates[at] = i;
  gates[f_at] = f;
  gates[n_at] = n;
  gates[o_at] = o;
  const A cell_before = cells_before[number];
  A cell = f * cell_before + i * n;
  if (clips == 2) cell = fmax(fmin(cell, high), low);
  else if (clips && cell == cell) cell = min(max(cell, low), high);
  cells[number] = ended ? cell_before : cell;
  states[place] = ended ? {_STATE_BEFORE} : o * tanh(cell);
""",
    ("a step of 128 samples, 256 hidden", lambda: _moved(11, 8)),
    _DECLARES,
)
LSTM_BACK = KernelTemplate(
    "opbox_lstm_back",
    "const A *gates, const A *cells, const A *cells_before, const A *gstates, A *gstate, A *gcell, A *ggates, "
    f"A low, A high, int clips, {_SIZES}",
    f"""{_BEGIN}{_FOUR}  const A passing = gstate[number];
  if (ended) {{
    ggates[at] = 0;
    ggates[f_at] = 0;
    ggates[n_at] = 0;
    ggates[o_at] = 0;
    return;
  }}
  const A total = gstates[place] + passing;
  const A i = gates[at], f = gates[f_at], n = gates[n_at], o = gates[o_at];
  const A cell = cells[number], squashed = tanh(cell);
  const A inner = gcell[number] + total * (o * (1 - squashed * squashed));
  const bool inside = !clips || (cell > low && cell < high);
  ggates[at] = inside ? inner * (n * i * (1 - i)) : A(0);
  ggates[f_at] = inside ? inner * (cells_before[number] * f * (1 - f)) : A(0);
  ggates[n_at] = inside ? inner * (i * (1 - n * n)) : A(0);
  ggates[o_at] = total * (squashed * o * (1 - o));
  gcell[number] = inside ? inner * f : A(0);
  gstate[number] = 0;
""",
    ("a step of 128 samples, 256 hidden", lambda: _moved(15)),
)
GRU = KernelTemplate(
    "opbox_gru",
    f"A *gates, const A *product, const A *i2h_bias, const A *h2h_bias, A *again, A *states, {_BEFORE}, {_SIZES}",
    f"""{_BEGIN}  const int at = sample * 3 * hidden + h, z_at = at + hidden, n_at = z_at + hidden;
  const int hz = h + hidden, hn = hz + hidden;
  const A r = opbox_sigmoid(gates[at] + (i2h_bias[h] + h2h_bias[h]) + product[at]);
  const A z = opbox_sigmoid(gates[z_at] + (i2h_bias[hz] + h2h_bias[hz]) + product[z_at]);
  const A recurrent = product[n_at] + h2h_bias[hn];
  const A n = tanh(gates[n_at] + i2h_bias[hn] + r * recurrent);
  const A old = {_STATE_BEFORE};
  gates[at] = r;
  gates[z_at] = z;
  gates[n_at] = n;
  again[number] = recurrent;
  states[place] = ended ? old : n + (old - n) * z;
""",
    ("a step of 128 samples, 256 hidden", lambda: _moved(12, 6)),
    _DECLARES,
)
GRU_BACK = KernelTemplate(
    "opbox_gru_back",
    f"const A *gates, const A *again, const A *gstates, A *gstate, A *ginputs, A *grecurrent, {_BEFORE}, {_SIZES}",
    f"""{_BEGIN}  const int at = sample * 3 * hidden + h, z_at = at + hidden, n_at = z_at + hidden;
  const A passing = gstate[number];
  A of_r = 0, of_z = 0, of_n = 0, r = 0;
  if (!ended) {{
    const A total = gstates[place] + passing, z = gates[z_at], n = gates[n_at];
    r = gates[at];
    of_n = total * ((1 - z) * (1 - n * n));
    of_z = total * (({_STATE_BEFORE} - n) * z * (1 - z));
    of_r = of_n * (again[number] * r * (1 - r));
    gstate[number] = total * z;
  }}
  ginputs[at] = of_r;
  ginputs[z_at] = of_z;
  ginputs[n_at] = of_n;
  grecurrent[at] = of_r;
  grecurrent[z_at] = of_z;
  grecurrent[n_at] = of_n * r;
""",
    ("a step of 128 samples, 256 hidden", lambda: _moved(14)),
)
PLAIN = KernelTemplate(
    "opbox_cell",
    f"A *gates, const A *i2h_bias, const A *h2h_bias, A *states, {_BEFORE}, int relu, {_SIZES}",
    f"""{_BEGIN}  const A sum = gates[number] + (i2h_bias[h] + h2h_bias[h]);
  const A value = relu ? (sum < 0 ? A(0) : sum) : tanh(sum);
  gates[number] = value;
  states[place] = ended ? {_STATE_BEFORE} : value;
""",
    ("a step of 128 samples, 256 hidden", lambda: _moved(3, 2)),
)
PLAIN_BACK = KernelTemplate(
    "opbox_cell_back",
    f"const A *gates, const A *gstates, A *gstate, A *ggates, int relu, {_SIZES}",
    f"""{_BEGIN}  const A passing = gstate[number];
  if (ended) {{
    ggates[number] = 0;
    return;
  }}
  const A total = gstates[place] + passing, value = gates[number];
  ggates[number] = total * (relu ? A(value > 0) : 1 - value * value);
  gstate[number] = 0;
""",
    ("a step of 128 samples, 256 hidden", lambda: _moved(5)),
)
KERNELS += [LSTM, LSTM_BACK, GRU, GRU_BACK, PLAIN, PLAIN_BACK]
