"""Relations between two calls of an attention function: why each holds."""

MEANINGS = {
    "heads permuted": "heads in another order give the heads of the output in that order",
    "a bias of -inf for the mask": "a bias of -inf hides a key as a mask does, so the output is the same",
    "a mask for causal and window": "a mask that keeps the same keys replaces both: the output is the same",
    "mask and bias expanded": "mask and bias expanded to all scores say what they said: the output is the same",
    "q * 4^n and scale / 4^n": "powers of four cancel in scale * (q @ k.T) without rounding, so the output is the same",
    "-q and -scale": "two signs cancel in scale * (q @ k.T), so the output is the same",
    "-v": "the output is linear in v, so its sign changes and nothing else",
    "keys repeated for each query head": "each query head gets a copy of its key head: the output is the same",
    "one batch alone": "batches don't see each other, so the one that is left gives what it gave",
    "a bias for ALiBi": "slopes times distances, added as a bias, are what ALiBi adds, so the output is the same",
    "some queries alone": "queries don't see each other, so the ones that are left give what they gave",
    "features of 0 appended": "features of 0 add nothing to q @ k.T, and those of v give features of 0",
    "keys permuted": "softmax has no order, so keys and values in another order give the same output",
    "keys masked or removed": "a key that a mask hides counts no more than one that is gone, so both give one output",
    "masked keys appended": "keys that a mask hides count for nothing, so the output is the same",
    "queries and keys cut off under causality": "what is cut off was hidden from the queries that are left",
    "features of q and k turned alike": "order and signs of the features cancel in q @ k.T, so the output is the same",
    "sinks as one more key": "a sink is the score of one more key whose value is 0, so the output is the same",
    "v = 1 gives 1": "weights add up to 1, so values of 1 give outputs of 1",
    "between the smallest and the largest v": "a weighted mean lies between the smallest and the largest value",
}
"""By its name in fuzz/check/oracle/attention/relation_table.py, which says how a call is changed."""
