"""The names of mistakes: what each one is, and where to look for it.

The first part lists the switches of formulas.py, the second what no formula can show: overflow, randomness, changed arguments.
"""

from __future__ import annotations

from typing import NamedTuple


class Mistake(NamedTuple):
    """says: what the function does.  hint: where to look."""

    says: str
    hint: str


MISTAKES: dict[str, Mistake] = {
    # softmax
    "softmax_queries": Mistake(
        "the softmax is taken over the wrong axis: columns sum to 1 instead of rows",
        "each query shares out its weight among the keys: normalise over the last axis (axis=-1, keepdims=True; dim=-1)",
    ),
    "softmax_all": Mistake(
        "the softmax is taken over all entries at once: the whole matrix sums to 1 instead of each row",
        "sum over the last axis only (axis=-1, keepdims=True); a function for single rows names its parameter `row`",
    ),
    "softmax_heads": Mistake(
        "the softmax is taken over the heads: for each query and key, the weights of all heads sum to 1",
        "normalise over the keys, the last axis (axis=-1, keepdims=True; dim=-1), in each head",
    ),
    "no_softmax": Mistake("there is no softmax: the scores themselves are the weights", "weights = softmax(scores)"),
    "no_exp": Mistake(
        "the scores are divided by their sum without an exponential", "the softmax is exp(s_j) / Σ_k exp(s_k): exp comes first"
    ),
    "not_normalised": Mistake("the exponentials are not divided by their sum", "the softmax is exp(s_j) / Σ_k exp(s_k)"),
    "argmax": Mistake(
        "all weight is on the key with the highest score: this is hard attention", "use a softmax in place of argmax"
    ),
    "sigmoid": Mistake(
        "a sigmoid replaces the softmax: rows do not sum to 1", "the weights of one query compete: use a softmax"
    ),
    "log_softmax": Mistake("the logarithm of the softmax is used", "use softmax, not log_softmax"),
    # scale
    "no_scale": Mistake("the scores are not scaled", "divide query · key by √d, d = width of a query, before the softmax"),
    "scale_d": Mistake("the scores are divided by d instead of √d", "take the square root of the width"),
    "scale_twice": Mistake("the scores are divided by d² instead of √d", "take the square root, not the square"),
    "scale_multiplied": Mistake("the scores are multiplied by √d instead of divided", "scores / √d, or scores · d**-0.5"),
    "scale_keys": Mistake(
        "the scores are divided by √(number of keys) instead of √d", "d is the width of a query: query.shape[-1]"
    ),
    "scale_queries": Mistake(
        "the scores are divided by √(number of queries) instead of √d", "d is the width of a query: query.shape[-1]"
    ),
    "scale_values": Mistake(
        "the scores are divided by √(width of the values) instead of √d", "d is the width of a query: query.shape[-1]"
    ),
    "scale_width": Mistake(
        "the scores are divided by the root of the whole width instead of the width of one head",
        "each head has queries of width (columns of W_q) / heads; take the root of that",
    ),
    "cosine": Mistake(
        "the scores are divided by the lengths of query and key: they are cosines", "divide query · key by √d alone"
    ),
    "scale_after": Mistake("the weights are divided by √d after the softmax", "divide the scores, before the softmax"),
    # mask
    "mask_inverted": Mistake(
        "the mask is inverted: positions with True are hidden and the others are seen",
        "True means “may attend”: fill where the mask is False",
    ),
    "mask_ignored": Mistake(
        "the mask is ignored: padding leaks into the output", "set the scores to −∞ where the mask is False, before the softmax"
    ),
    "mask_after": Mistake(
        "the mask is applied after the softmax: the remaining weights do not sum to 1",
        "set the scores to −∞ before the softmax instead of setting weights (or, for each query, values) to 0 after it",
    ),
    "mask_values": Mistake(
        "the mask is applied to the values: hidden keys still take their share of the weights",
        "set the scores to −∞ before the softmax, and leave the values as they are",
    ),
    "mask_one_row": Mistake(
        "the first row of the mask is used for all queries", "mask[i, j] says whether query i may attend to key j"
    ),
    "mask_zero": Mistake("masked scores are set to 0 before the softmax: exp(0) = 1, so padding leaks", "use −∞ in place of 0"),
    "mask_small": Mistake(
        "masked scores are not low enough: a finite number takes the role of −∞, and padding leaks where scores are lower",
        "use −∞ (float('-inf')) or the smallest number of the dtype",
    ),
    "mask_added": Mistake(
        "the mask is added to the scores as 0 and 1", "the mask is boolean: set scores to −∞ where it is False"
    ),
    "mask_transposed": Mistake("the mask is transposed", "mask[i, j] says whether query i may attend to key j"),
    # causal masks
    "sees_next": Mistake(
        "the look-ahead mask is off by one: each position sees the next one",
        "query i sees key j if j ≤ i: tril(k=0), triu(k=1)",
    ),
    "hides_itself": Mistake(
        "the look-ahead mask is off by one: no position sees itself", "query i sees key j if j ≤ i, not only if j < i"
    ),
    "sees_future": Mistake(
        "the triangle is the wrong one: each position sees the future and not the past", "the lower triangle is allowed: tril"
    ),
    "misaligned": Mistake(
        "with fewer queries than keys, the mask is aligned at the first key; it must be aligned at the last",
        "the queries are the last positions: query i sees key j if j ≤ i + (Lk − Lq)",
    ),
    "causal_ignored": Mistake("nothing is hidden: each position sees the future", "hide key j from query i if j > i"),
    # inputs and output
    "swapped": Mistake(
        "query and key are swapped: entry (i, j) of the scores is key i · query j, so they are transposed",
        "scores = query @ key.T: a row per query",
    ),
    "not_transposed": Mistake("the keys are not transposed: query @ key", "scores = query @ key.T"),
    "queries_only": Mistake("the queries are compared with themselves: query @ query.T", "scores = query @ key.T"),
    "keys_only": Mistake("the keys are compared with themselves: key @ key.T", "scores = query @ key.T"),
    "shared_rows": Mistake(
        "all rows are those of the first query", "compute a row of scores for every query; look for [0], or an early return"
    ),
    "values_are_keys": Mistake("the keys are mixed instead of the values", "output = weights @ value"),
    "returns_weights": Mistake(
        "the values are not mixed: the weights are returned as the output", "output = weights @ value; return output, weights"
    ),
    "returns_values": Mistake("the values are returned as they are", "output = weights @ value"),
    "returns_scores": Mistake("the scores are returned as the output", "output = softmax(scores) @ value"),
    "weights_transposed": Mistake("the weights are transposed before they mix the values", "output = weights @ value"),
    "output_transposed": Mistake("the result is transposed", "it has one row per query (or position)"),
    "softmax_applied": Mistake("the weights are returned instead of the scores", "leave the softmax to the caller"),
    # heads
    "head_view": Mistake(
        "the heads are split by a reshape alone, which mixes positions: (L, h·d) was read as (h, L, d)",
        "reshape to (L, h, d) first, then transpose to (h, L, d)",
    ),
    "head_interleaved": Mistake(
        "the heads take every h-th column instead of neighbouring columns", "reshape to (L, h, d), not (L, d, h)"
    ),
    "head_repeated": Mistake(
        "all heads are the first one", "head i has the columns i·d to (i+1)·d of queries, keys and values"
    ),
    "heads_share_weights": Mistake("all heads use the weights of the first one", "compute scores and a softmax for each head"),
    "wrong_projection": Mistake(
        "a matrix is used where another one belongs", "queries are x @ W_q, keys x @ W_k, values x @ W_v"
    ),
    "join_view": Mistake(
        "the heads are joined by a reshape alone, which mixes positions: (h, L, d) was read as (L, h·d)",
        "transpose to (L, h, d) first, then reshape to (L, h·d)",
    ),
    "join_interleaved": Mistake(
        "the heads are joined column by column instead of one after the other", "concatenate along the last axis"
    ),
    "join_reversed": Mistake("the heads are joined in reverse order", "concatenate head 1 first"),
    "heads_mean": Mistake("the heads are averaged instead of concatenated", "concatenate along the last axis"),
    "heads_sum": Mistake("the heads are added instead of concatenated", "concatenate along the last axis"),
    "heads_ignored": Mistake("there is one head, whatever `heads` says", "split queries, keys and values before attending"),
    "no_output_projection": Mistake("W_o is not applied", "output = concatenated heads @ W_o"),
    # additive scores
    "v_forgotten": Mistake("v is forgotten: the entries of tanh(…) are added up", "the score is vᵀ tanh(W_q q + W_k k)"),
    "v_mean": Mistake("v is forgotten: the entries of tanh(…) are averaged", "the score is vᵀ tanh(W_q q + W_k k)"),
    "tanh_forgotten": Mistake(
        "tanh is forgotten", "the score is vᵀ tanh(W_q q + W_k k); without tanh it ranks keys by W_k alone"
    ),
    "tanh_each": Mistake("tanh is applied to both parts before they are added", "add W_q q and W_k k first, then take tanh"),
    "tanh_last": Mistake("tanh is applied after v", "take tanh of the vector W_q q + W_k k, then multiply by v"),
    "product": Mistake("W_q q and W_k k are multiplied instead of added", "the score is vᵀ tanh(W_q q + W_k k)"),
    "sigmoid_for_tanh": Mistake("a sigmoid replaces tanh", "the score is vᵀ tanh(W_q q + W_k k)"),
    "relu_for_tanh": Mistake("max(0, ·) replaces tanh", "the score is vᵀ tanh(W_q q + W_k k)"),
    "matrices_swapped": Mistake("W_q and W_k are swapped", "W_q belongs to the query, W_k to the key"),
    "query_forgotten": Mistake("the query is not used", "the score is vᵀ tanh(W_q q + W_k k)"),
    "key_forgotten": Mistake("the key is not used", "the score is vᵀ tanh(W_q q + W_k k)"),
    "scaled_too": Mistake("the scores are divided by a square root", "additive scores are not scaled; dot products are"),
    # positions
    "starts_at_one": Mistake("positions are off by one: the first is 1", "positions count from 0: the first row is 0 1 0 1 …"),
    "halves": Mistake(
        "all sines come first, then all cosines", "sin and cos of one frequency are neighbours: columns 2k and 2k + 1"
    ),
    "sin_cos_swapped": Mistake("sin and cos are swapped", "sin in the even columns, cos in the odd ones"),
    "exponent_index": Mistake(
        "sin and cos of a pair have different frequencies", "columns 2k and 2k + 1 share 10000^(−2k/d); use 2·(column // 2)"
    ),
    "exponent_half": Mistake("the exponent is k/d instead of 2k/d, or the base is 100", "ω_k = 10000^(−2k/d)"),
    "exponent_double": Mistake(
        "the exponent is 4k/d instead of 2k/d", "ω_k = 10000^(−2k/d); if your index is already even, do not double it"
    ),
    "frequency_inverted": Mistake("positions are multiplied by 10000^(2k/d)", "divide by it: ω_k = 10000^(−2k/d)"),
    "base_1000": Mistake("the base is 1,000 instead of 10,000", "ω_k = 10000^(−2k/d)"),
    # what no formula shows
    "overflow": Mistake(
        "large scores overflow", "subtract the largest score of each row before exp; the softmax stays the same"
    ),
    "large_scores": Mistake(
        "the result is wrong for scores of ±10,000", "are scores limited, or is something added to them or to their sum?"
    ),
    "row_maximum": Mistake(
        "a row far below the others becomes 0/0",
        "subtract the maximum of each row (axis=-1, keepdims=True), not that of the matrix",
    ),
    "hidden_maximum": Mistake(
        "a row becomes 0/0 where hidden keys have far higher scores than the others",
        "set the scores to −∞ where the mask is False first, then subtract the maximum of each row",
    ),
    "dropout": Mistake(
        "the weights are those after dropout: some are 0, the others too large",
        "apply no dropout here; a layer applies it in training only",
    ),
    "random_output": Mistake("the same arguments give other results in a second call", "remove what is random"),
    "float32": Mistake(
        "the result has the precision of float32, but the arguments are float64",
        "keep the dtype of the arguments; look for float32, .float(), or torch.zeros(…) without dtype=",
    ),
    "changes_arguments": Mistake(
        "the function changes its arguments",
        "copy them, or write x = x / 2 in place of x /= 2 and np.where in place of x[…] = …",
    ),
    "wrong_weights": Mistake("the output is right, but the second result is not the weights", "return output, weights"),
    "results_swapped": Mistake("the weights come first and the output second", "return output, weights"),
    "needs_equal_lengths": Mistake(
        "the function fails or is wrong if there are not as many queries as keys", "test it with query (2, d) and key (3, d)"
    ),
    "fails_with_mask": Mistake("the function fails when it gets a mask", "the mask is boolean, (queries, keys)"),
    "fails_sometimes": Mistake("the function fails on some arguments", "run it on the arguments shown"),
    "returns_none": Mistake("the function returns None", "is a `return` missing?"),
    "no_numbers": Mistake("the function does not return a matrix of numbers", "return an array, a tensor or a list of rows"),
    "wrong_shape": Mistake("the result has the wrong shape", "print the shapes of all intermediate results"),
    "wrong_arguments": Mistake("the function cannot be called", "see regard check --template for the parameters"),
    "not_written": Mistake("the function is not written yet", "replace `raise NotImplementedError`"),
    "raises": Mistake("the function raises an exception", "run it on the arguments shown"),
    "endless_recursion": Mistake("the function calls itself without end", "a recursive function needs a case that ends it"),
    "out_of_memory": Mistake(
        "the function needs too much memory", "look for arrays that grow in a loop; --memory sets the limit"
    ),
    "asks_for_input": Mistake("the function waits for the keyboard", "remove input()"),
    "ends_process": Mistake("the function ended the process", "remove sys.exit(), exit() or quit(); return instead"),
    "unnamed": Mistake(
        "the result is wrong, but none of the known mistakes, nor two of them together, gives these numbers",
        "compute the small example by hand, step by step (regard check --worksheet)",
    ),
}

NOTES: dict[str, Mistake] = {
    "no_mask": Mistake("the function takes no mask, so masks were not checked", "add a parameter mask=None"),
    "epsilon": Mistake(
        "a small number is added to the sum of the softmax",
        "it is not needed: after subtracting the maximum, the sum is at least 1",
    ),
    "empty_row": Mistake(
        "a query that may attend to nothing gives NaN", "Regard returns zeros there; one NaN spoils a whole batch in training"
    ),
}
"""Remarks on a function that is not wrong."""


def mistake(name: str) -> Mistake:
    """Returns the mistake with this name or switch, such as "mask_small:fill 10"."""
    return MISTAKES[name.partition(":")[0]]
