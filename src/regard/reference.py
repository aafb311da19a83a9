"""Every formula of the lecture notes in NumPy, with their letters, one line each where possible. Read it next to the papers;
the parity tests compare Regard's layers with it.

Nothing here is fast, and no model uses it.

Letters: Q (…, Lq, dq) queries, K (…, Lk, dk) keys, V (…, Lk, dv) values; s_t a decoder state, h_i an encoder state, H all h_i
as rows; y_t an output token (its embedding), c_t a context vector; X, Z sequences of vectors as rows; W, U, V matrices, b a
bias.
allow (…, Lq, Lk) is True where a query may attend to a key. [a; b] concatenates two vectors. Leading dimensions are arbitrary.

The papers write both W x and x W. In W x, W is (out, in), as torch stores it; in x W it is (in, out).

>>> import numpy as np
>>> from regard import reference
>>> X = np.array([[9.0, 0.0], [0.0, 9.0]])
>>> weights = reference.softmax(reference.dot(X, X))
>>> weights.round(3)
array([[1., 0.],
       [0., 1.]])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Allow = Mask | None  # None: all keys are allowed
Bias = Array | float
Map = Callable[[Array], Array]
Score = Callable[[Array, Array], Array]  # (Q, K) -> scores; with parameters: `lambda Q, K: general(Q, K, W)`
Weighting = Callable[[Array, Allow], Array]  # (scores, allow) -> weights: softmax, hard or hard_gates
Positions = int | Ints

# --- elementary functions ----------------------------------------------------------------------------------------------------


def concatenate(*parts: Array) -> Array:
    """[a; b; …]."""
    return np.concatenate(parts, axis=-1)


def masked(x: Array, allow: Allow, fill: float) -> Array:
    """x where allowed, `fill` elsewhere."""
    return x if allow is None else np.where(allow, x, fill)


def sigmoid(x: Array) -> Array:
    """σ(x) = 1 / (1 + exp(−x)), in a form that does not overflow."""
    return (1 + np.tanh(x / 2)) / 2


def relu(x: Array) -> Array:
    """max(0, x)."""
    return np.maximum(0, x)


def gelu(x: Array) -> Array:
    """x Φ(x), Φ the standard normal distribution function (Hendrycks & Gimpel 2016)."""
    return x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))) / 2


# --- scores: how well a query fits a key, (…, Lq, Lk) ------------------------------------------------------------------------


def dot(Q: Array, K: Array) -> Array:
    """s·h (Luong et al. 2015)."""
    return Q @ K.swapaxes(-1, -2)


def scaled_dot(Q: Array, K: Array, divide_by: float | None = None) -> Array:
    """s·h / √d (Vaswani et al. 2017), or divided by any other number."""
    return dot(Q, K) / (np.sqrt(Q.shape[-1]) if divide_by is None else divide_by)


def general(Q: Array, K: Array, W: Array) -> Array:
    """sᵀ W h (Luong et al. 2015); W is (dq, dk)."""
    return Q @ W @ K.swapaxes(-1, -2)


def basic(S: Array, H: Array, K: Array, Q: Array) -> Array:
    """(K h)·(Q s) / d, d the width of the states h (one of the lecture notes); K is (a, d), Q (a, dq)."""
    return dot(S @ Q.T, H @ K.T) / H.shape[-1]


def additive(Q: Array, K: Array, W_b: Array, W_c: Array, v: Array) -> Array:
    """vᵀ tanh(W_b s + W_c h) (Bahdanau et al. 2015); W_b is (a, dq), W_c (a, dk), v (a,)."""
    s, h = Q[..., :, None, :], K[..., None, :, :]
    return np.tanh(s @ W_b.T + h @ W_c.T) @ v


def concat(Q: Array, K: Array, W: Array, v: Array) -> Array:
    """vᵀ tanh(W [s; h]) (Luong et al. 2015); W is (a, dq + dk)."""
    s, h = Q[..., :, None, :], K[..., None, :, :]
    pairs = np.broadcast_shapes(s.shape[:-1], h.shape[:-1])
    s_h = concatenate(np.broadcast_to(s, (*pairs, s.shape[-1])), np.broadcast_to(h, (*pairs, h.shape[-1])))
    return np.tanh(s_h @ W.T) @ v


def location(Q: Array, W: Array, real: Mask) -> Array:
    """W s (Luong et al. 2015): row j of W is the key of the j-th real position, whatever its content. real (…, Lk) is False at
    padding, left or right. Padding, and positions beyond the rows of W, have the score −∞."""
    j = np.cumsum(real, -1) - 1
    known = real & (j < len(W))
    return masked(dot(Q, W[np.where(known, j, 0)]), known[..., None, :], -np.inf)


def cosine(Q: Array, K: Array, temperature: float) -> Array:
    """cos(s, h) / temperature; the cosine with a zero vector is 0."""
    norms = np.linalg.norm(Q, axis=-1)[..., :, None] * np.linalg.norm(K, axis=-1)[..., None, :]
    return np.divide(dot(Q, K), norms, out=np.zeros_like(norms), where=norms > 0) / temperature


def distance(Q: Array, K: Array) -> Array:
    """−‖s − h‖² / 2d."""
    difference = Q[..., :, None, :] - K[..., None, :, :]
    return -(difference**2).sum(-1) / (2 * Q.shape[-1])


# --- from scores to weights to context ---------------------------------------------------------------------------------------


def softmax(scores: Array, allow: Allow = None) -> Array:
    """exp s_j / Σ_k exp s_k of every row, numerically stable. A key that is not allowed has the score −∞ and the weight 0;
    a row with no key allowed is all zeros."""
    scores = masked(scores, allow, -np.inf)
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def attention(scores: Array, V: Array, allow: Allow = None) -> Array:
    """output_i = Σ_j weights_ij · v_j."""
    return softmax(scores, allow) @ V


def unnormalised(scores: Array, V: Array, allow: Allow = None) -> Array:
    """output_i = Σ_j f(q_i, k_j) v_j, without a softmax."""
    return masked(scores, allow, 0.0) @ V


def entropy(weights: Array) -> Array:
    """−Σ_j w_j ln w_j of every row: 0 where one key has all the weight, ln Lk where all are equal."""
    return -np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1.0)), 0.0).sum(-1)


# --- hard attention, and the policy gradient that trains it (Xu et al. 2015, 4.1; Williams 1992) -----------------------------


def hard(scores: Array, allow: Allow = None) -> Array:
    """All weight on the allowed key with the highest score, as at inference. A row with no key allowed is all zeros."""
    scores = masked(scores, allow, -np.inf)
    best = scores.argmax(-1)[..., None] == np.arange(scores.shape[-1])
    return (best & (scores > -np.inf)).astype(np.float64)


def hard_log_prob(scores: Array, a: Ints, allow: Allow = None) -> Array:
    """ln π(a) = s_a − ln Σ_j exp s_j for the chosen key a (…, Lq) of each query; 0 in a row with no key allowed.
    The entropy of the choice is `entropy(softmax(scores, allow))`."""
    scores = masked(scores, allow, -np.inf)
    total = np.logaddexp.reduce(scores, axis=-1)
    s_a = np.take_along_axis(scores, a[..., None], axis=-1)[..., 0]
    return np.subtract(s_a, total, out=np.zeros_like(total), where=total > -np.inf)


def gate_weights(g: NDArray[np.generic]) -> Array:
    """g / max(1, Σ_j g_j): the open gates share the weight equally; if none is open, all weights are 0."""
    return g / np.maximum(1, g.sum(-1, keepdims=True))


def hard_gates(scores: Array, allow: Allow = None) -> Array:
    """Independent gates at inference: the gate of a key is open if its probability σ(score) is above ½."""
    return gate_weights(masked(scores, allow, -np.inf) > 0)


def log_gates(scores: Array, g: NDArray[np.generic], allow: Allow = None) -> Array:
    """ln π(g) = Σ_j ln σ(s_j) where g_j = 1, ln σ(−s_j) where g_j = 0, over the allowed keys; ln σ(x) = −ln(1 + exp(−x))."""
    return masked(-np.logaddexp(0.0, np.where(g, -scores, scores)), allow, 0.0).sum(-1)


def gates_entropy(scores: Array, allow: Allow = None) -> Array:
    """The sum of the entropies of the allowed gates, which are independent."""
    p = sigmoid(scores)
    return masked(entropy(np.stack([p, 1 - p], axis=-1)), allow, 0.0).sum(-1)


def reward_to_go(log_p: Array) -> Array:
    """R_t = Σ_{u≥t} log p(y_u | a≤u): the rewards that the choice at t can still affect."""
    return np.cumsum(log_p[..., ::-1], axis=-1)[..., ::-1]


def surrogate(log_p: Array, log_pi: Array, R: Array, b: float, H: Array | float = 0.0, bonus: float = 0.0) -> Array:
    """Σ_t log p(y_t) + (R_t − b) log π(a_t) + bonus · H_t, H_t the entropy of choice t. With R and b held constant, the
    expectation of its gradient is the gradient of E_a Σ_t log p(y_t), plus that of the bonus."""
    return (log_p + (R - b) * log_pi + bonus * H).sum(-1)


# --- masks -------------------------------------------------------------------------------------------------------------------


def causal(Lq: int, Lk: int) -> Mask:
    """The last query may attend to every key, the one before it to all but the last, and so on."""
    return np.arange(Lk)[None, :] <= np.arange(Lq)[:, None] + (Lk - Lq)


def window(Lq: int, Lk: int, w: int) -> Mask:
    """Query i may attend to the keys from i − w to i + w, which are selected by position, as in a convolution."""
    i = np.arange(Lq)[:, None] + (Lk - Lq)
    return np.abs(np.arange(Lk)[None, :] - i) <= w


# --- position encodings: φ(i) for one position i, or for positions of any shape (…) -> (…, d) --------------------------------

Layout = Literal["interleaved", "halves"]  # order of pairs (a_k, b_k) in a vector: a_0 b_0 a_1 b_1 …, or a_0 a_1 … b_0 b_1 …


def join(a: Array, b: Array, layout: Layout) -> Array:
    """Pairs (a_k, b_k) -> vector."""
    return concatenate(a, b) if layout == "halves" else np.stack([a, b], axis=-1).reshape(*a.shape[:-1], -1)


def split(x: Array, layout: Layout) -> tuple[Array, Array]:
    """Vector -> pairs (a_k, b_k)."""
    half = x.shape[-1] // 2
    return (x[..., :half], x[..., half:]) if layout == "halves" else (x[..., 0::2], x[..., 1::2])


def sinusoidal(i: Positions, d: int, first: int = 0, layout: Layout = "interleaved") -> Array:
    """sin(ω_k i), cos(ω_k i), ω_k = 10000^(−2k/d), k = first … first + d/2 − 1 (Vaswani et al. 2017, 3.5)."""
    angle = np.asarray(i)[..., None] * 10000.0 ** (-2 * (first + np.arange(d // 2)) / d)
    return join(np.sin(angle), np.cos(angle), layout)


def raw_index(i: Positions) -> Array:
    """φ(i) = i: a single number, unbounded."""
    return np.asarray(i, dtype=np.float64)[..., None]


def one_hot(i: Positions, d: int) -> Array:
    """φ(i) = e_i: φ(i)·φ(j) is 1 if i = j, else 0, so neighbouring positions are no more similar than distant ones."""
    return np.eye(d)[i]


def fourier_kernel(i: Positions, j: Positions, lam: float = 0.01) -> Array:
    """exp(−λ (i−j)²): the kernel that φ(i)·φ(j) of Fourier features approximates (Rahimi & Recht 2007)."""
    return np.exp(-lam * (np.asarray(i, dtype=np.float64) - j) ** 2)


def added(X: Array, phi: Array) -> Array:
    """√d x_i + φ(i) (Vaswani et al. 2017, 3.4), d the width of the embeddings."""
    return math.sqrt(X.shape[-1]) * X + phi


def appended(X: Array, phi: Array) -> Array:
    """[√d x_i; φ(i)]: the width is d + d_pos."""
    return concatenate(math.sqrt(X.shape[-1]) * X, np.broadcast_to(phi, (*X.shape[:-1], phi.shape[-1])))


def rotary(x: Array, i: Positions, layout: Layout = "halves", base: float = 10000.0) -> Array:
    """Each pair (a_k, b_k), as the complex number a_k + 1j b_k, times exp(1j ω_k i) (Su et al. 2021, 3.2): q·k then depends
    only on the distance between their positions. x is (…, L, d), the positions i are (…, L)."""
    a, b = split(x, layout)
    omega = base ** (-2 * np.arange(a.shape[-1]) / x.shape[-1])
    z = (a + 1j * b) * np.exp(1j * omega * np.asarray(i)[..., None])
    return join(z.real, z.imag, layout)


def alibi_slopes(h: int) -> Array:
    """m = 2^(−8/h), 2^(−16/h), …, 2^−8 for h heads (Press et al. 2022). If h is not a power of two: the slopes of the next
    lower power n, then every other slope of 2n."""
    n = 2 ** int(math.log2(h))
    slopes = 2.0 ** (-8 * np.arange(1, n + 1) / n)
    return slopes if n == h else np.concatenate([slopes, alibi_slopes(2 * n)[0::2][: h - n]])


def alibi(i: Ints, j: Ints, m: float | Array) -> Array:
    """−m |i−j|, added to the scores: (Lq,), (Lk,) -> (Lq, Lk) for one slope, (h, Lq, Lk) for h slopes."""
    return -np.asarray(m)[..., None, None] * np.abs(i[:, None] - j[None, :])


# --- self-, cross- and multi-head attention ----------------------------------------------------------------------------------


class Head(NamedTuple):
    """The matrices of one head: (d, d_k), (d, d_k), (d, d_v). Without W_V the values are the states themselves."""

    W_Q: Array
    W_K: Array
    W_V: Array | None = None
    b_Q: Bias = 0.0
    b_K: Bias = 0.0
    b_V: Bias = 0.0
    score: Score = scaled_dot


def self_attention(X: Array, allow: Allow = None) -> Array:
    """softmax(X Xᵀ) X, without parameters."""
    return attention(dot(X, X), X, allow)


def one_head(X: Array, Z: Array, head: Head, allow: Allow = None) -> Array:
    """q = W_Qᵀ x, k = W_Kᵀ z, v = W_Vᵀ z; softmax(Q Kᵀ/√d_k) V. Self-attention: Z = X; cross-attention: Z another sequence."""
    Q, K = X @ head.W_Q + head.b_Q, Z @ head.W_K + head.b_K
    V = Z if head.W_V is None else Z @ head.W_V + head.b_V
    return attention(head.score(Q, K), V, allow)


def multi_head(
    X: Array, Z: Array, heads: Sequence[Head], W_O: Array | None = None, b_O: Bias = 0.0, allow: Allow = None
) -> Array:
    """[head_1; …; head_h] W_O + b_O (Vaswani et al. 2017, 3.2.2). W_O is (h·d_v, d); without it the output has width h·d_v."""
    joined = concatenate(*(one_head(X, Z, head, allow) for head in heads))
    return joined if W_O is None else joined @ W_O + b_O


def grouped(W_Q: Sequence[Array], W_K: Sequence[Array], W_V: Sequence[Array]) -> list[Head]:
    """h query heads share g < h heads of keys and values: query head n uses head ⌊n g / h⌋ of them (Ainslie et al. 2023)."""
    group = [n * len(W_K) // len(W_Q) for n in range(len(W_Q))]
    return [Head(W, W_K[n], W_V[n]) for W, n in zip(W_Q, group, strict=True)]


# --- recurrent networks ------------------------------------------------------------------------------------------------------

State = tuple[Array, ...]  # the recurrent state: (h,), or (h, c) with a cell state; the output of the cell is h
Cell = Callable[..., State]  # (x_t, *state) -> state: a cell with its weights, `lambda x, h: gru_cell(x, h, W, U, b_W, b_U)`


def rnn_cell(x: Array, h: Array, W: Array, U: Array, b: Array, f: Map = np.tanh) -> State:
    """h_t = f(U h_{t−1} + W x_t + b), f = tanh, relu or sigmoid (Elman 1990). W is (n, m), U (n, n)."""
    return (f(h @ U.T + x @ W.T + b),)


def lstm_cell(x: Array, h: Array, c: Array, W: Array, U: Array, b: Array) -> State:
    """c_t = f ⊙ c_{t−1} + i ⊙ g, h_t = o ⊙ tanh c_t (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000). The rows
    of W (4n, m), U (4n, n) and b (4n,) belong to i, f, g, o, which is torch's order; b is the sum of torch's two."""
    i, f, g, o = np.split(x @ W.T + h @ U.T + b, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_cell(x: Array, h: Array, W: Array, U: Array, b_W: Array, b_U: Array) -> State:
    """h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}, n = tanh(W_n x_t + b_Wn + r ⊙ (U_n h_{t−1} + b_Un)) (Cho et al. 2014), torch's form:
    r acts after the product. The rows of W (3n, m), U (3n, n), b_W and b_U (3n,) belong to r, z, n, which is torch's order."""
    (W_r, W_z, W_n), (U_r, U_z, U_n) = (np.split(a, 3, axis=-1) for a in (x @ W.T + b_W, h @ U.T + b_U))
    r, z = sigmoid(W_r + U_r), sigmoid(W_z + U_z)
    return ((1 - z) * np.tanh(W_n + r * U_n) + z * h,)


def unroll(cell: Cell, X: Array, state: State) -> tuple[Array, State]:
    """All states h_1 … h_L as rows, and the state after the last step. A second layer takes H as its X."""
    H = []
    for t in range(X.shape[-2]):
        state = cell(X[..., t, :], *state)
        H.append(state[0])
    return np.stack(H, axis=-2), state


def bidirectional(forward: Cell, backward: Cell, X: Array, state: State) -> tuple[Array, Array]:
    """h_i = [→h_i; ←h_i] as rows, and the last state of each direction, [→h_L; ←h_1] (Schuster & Paliwal 1997)."""
    (F, last), (B, first) = unroll(forward, X, state), unroll(backward, X[..., ::-1, :], state)
    return concatenate(F, B[..., ::-1, :]), concatenate(last[0], first[0])


def tagger(H: Array, W_o: Array, b_o: Array) -> Array:
    """softmax(W_o h_t + b_o): a distribution over the labels at every step."""
    return softmax(H @ W_o.T + b_o)


# --- one step of a recurrent decoder -----------------------------------------------------------------------------------------

Attend = Callable[[Array], tuple[Array, Array]]  # s -> (c, weights): `lambda s: context(s, H, score, allow)`


class Step(NamedTuple):
    """readout: the vector from which the logits are computed, s̃_t or [s_t; c_t]. weights: (…, Lk)."""

    state: State
    context: Array
    weights: Array
    readout: Array
    logits: Array


def context(s: Array, H: Array, score: Score, allow: Allow = None, weigh: Weighting = softmax) -> tuple[Array, Array]:
    """c = Σ_i weights_i h_i and the weights, for one decoder state s; allow is (…, Lk)."""
    weights = weigh(score(s[..., None, :], H), None if allow is None else allow[..., None, :])
    return (weights @ H)[..., 0, :], weights[..., 0, :]


def fixed_step(state: State, y: Array, cell: Cell, W_o: Array, b_o: Bias, C: Array | None = None) -> tuple[State, Array]:
    """s_t = RNN(s_{t−1}, y_{t−1}), logits = W_o s_t + b_o: no attention; s_0 is computed from C, the encoder's last state
    (Sutskever et al. 2014). If C is given here, every input is [C; y_{t−1}] (Cho et al. 2014)."""
    state = cell(y if C is None else concatenate(C, y), *state)
    return state, state[0] @ W_o.T + b_o


def luong_step(
    state: State, y: Array, cell: Cell, look: Attend, W: Array, b: Bias, W_o: Array, b_o: Bias, fed: Array | None = None
) -> Step:
    """s_t = RNN(s_{t−1}, y_{t−1}); c_t from s_t; s̃_t = tanh(W [c_t; s_t] + b); logits = W_o s̃_t + b_o (Luong et al. 2015, 3).
    With input feeding (3.3), `fed` is s̃_{t−1}, zeros at the first step, and the input is [s̃_{t−1}; y_{t−1}]."""
    state = cell(y if fed is None else concatenate(fed, y), *state)
    c, weights = look(state[0])
    s_tilde = np.tanh(concatenate(c, state[0]) @ W.T + b)
    return Step(state, c, weights, s_tilde, s_tilde @ W_o.T + b_o)


def bahdanau_step(state: State, y: Array, cell: Cell, look: Attend, W_o: Array, b_o: Bias, f: Map | None = None) -> Step:
    """c_t from s_{t−1}; s_t = RNN(s_{t−1}, [c_t; y_{t−1}]); logits = W_o [s_t; c_t] + b_o (Bahdanau et al. 2015, 3.1), or with
    an activation f, W_o f([s_t; c_t]) + b_o."""
    c, weights = look(state[0])
    state = cell(concatenate(c, y), *state)
    readout = concatenate(state[0], c)
    readout = readout if f is None else f(readout)
    return Step(state, c, weights, readout, readout @ W_o.T + b_o)


# --- the Transformer (Vaswani et al. 2017) -----------------------------------------------------------------------------------


def layer_norm(x: Array, g: Array, b: Array, eps: float = 1e-5) -> Array:
    """g ⊙ (x − mean) / √(variance + ε) + b (Ba et al. 2016)."""
    return g * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) + b


def rms_norm(x: Array, g: Array, eps: float = 1e-5) -> Array:
    """g ⊙ x / √(mean of x² + ε) (Zhang & Sennrich 2019)."""
    return g * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def feed_forward(x: Array, W_1: Array, b_1: Array, W_2: Array, b_2: Array, f: Map = relu) -> Array:
    """max(0, x W_1 + b_1) W_2 + b_2 at each position (eq. 2), or with another f, such as gelu, for max(0, ·)."""
    return f(x @ W_1 + b_1) @ W_2 + b_2


def swiglu(x: Array, W: Array, V: Array, W_2: Array) -> Array:
    """(swish(x W) ⊙ x V) W_2, swish(x) = x σ(x) (Shazeer 2020, eq. 6)."""
    gate = x @ W
    return (gate * sigmoid(gate) * (x @ V)) @ W_2


# (X, Z, allow) -> contexts: attention with its parameters, `lambda X, Z, allow: multi_head(X, Z, heads, …, allow)`
Mix = Callable[[Array, Array, Allow], Array]
NormOrder = Literal["pre", "post"]


def residual(x: Array, f: Map, norm: Map, order: NormOrder) -> Array:
    """pre: x + f(LN(x)), with one more LN after the last layer (Xiong et al. 2020); post: LN(x + f(x)), as in the paper."""
    return x + f(norm(x)) if order == "pre" else norm(x + f(x))


def encoder_layer(
    X: Array, attend: Mix, feed: Map, norms: Sequence[Map], order: NormOrder = "pre", allow: Allow = None
) -> Array:
    """Self-attention and feed-forward network, each with a residual connection. With the look-ahead mask allow = `causal(L, L)`
    it is a layer of a decoder-only model (GPT)."""
    X = residual(X, lambda x: attend(x, x, allow), norms[0], order)
    return residual(X, feed, norms[1], order)


def decoder_layer(
    Y: Array, H: Array, attend: Mix, cross: Mix, feed: Map, norms: Sequence[Map], order: NormOrder = "pre", allow: Allow = None
) -> Array:
    """Masked self-attention, cross-attention (Q from the decoder, K and V from the encoder's H) and feed-forward network, each
    with a residual connection. allow is False where H is padding."""
    look_ahead = causal(Y.shape[-2], Y.shape[-2])
    Y = residual(Y, lambda y: attend(y, y, look_ahead), norms[0], order)
    Y = residual(Y, lambda y: cross(y, H, allow), norms[1], order)
    return residual(Y, feed, norms[2], order)


# --- the layers that attention replaced, and the cost of each ----------------------------------------------------------------


def convolution(X: Array, W: Array) -> Array:
    """y_i = Σ_o x_{i+o} W_o, o = −r … r, zeros beyond both ends: the weights depend on j − i. W is (2r + 1, d, d_v)."""
    r, L = len(W) // 2, X.shape[-2]
    padded = np.pad(X, [(0, 0)] * (X.ndim - 2) + [(r, r), (0, 0)])
    return np.sum([padded[..., o : o + L, :] @ W_o for o, W_o in enumerate(W)], axis=0)


def dense(X: Array, W: Array) -> Array:
    """y_i = Σ_j x_j W_ij: the weights depend on i and j. W is (L, L, d, d_v)."""
    return np.einsum("...jd,ijde->...ie", X, W)


class Cost(NamedTuple):
    operations: int
    parameters: int
    sequential_steps: int


def costs(L: int, d: int, d_k: int, d_v: int, k: int, form: Literal["notes", "exact"] = "notes") -> dict[str, Cost]:
    """L positions, input width d, output width d_v, key width d_k, kernel size k; no bias; a multiply-add is one operation. The
    notes omit attention's projections and its sum over the values, the recurrence's U h, and dense's matrix per output."""
    notes = {
        "self-attention": Cost(L**2 * d_k, d * d_k + d * d_k + d * d_v, 1),
        "recurrent": Cost(L * d * d_v, d * d_v + d_v**2, L),
        "convolution": Cost(L * k * d * d_v, k * d * d_v, 1),
        "dense": Cost(L**2 * d * d_v, L * d * d_v, 1),
    }
    exact = {
        "self-attention": Cost(L**2 * (d_k + d_v) + L * d * (2 * d_k + d_v), d * d_k + d * d_k + d * d_v, 1),
        "recurrent": Cost(L * (d * d_v + d_v**2), d * d_v + d_v**2, L),
        "convolution": Cost(L * k * d * d_v, k * d * d_v, 1),
        "dense": Cost(L**2 * d * d_v, L**2 * d * d_v, 1),
    }
    return {"notes": notes, "exact": exact}[form]
