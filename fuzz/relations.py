"""What the relations between two calls of an attention function mean (docs/oracle.md), and which findings are about one."""

MEANINGS = {
    "heads permuted": "heads in another order give the heads of the output in that order",
    "a bias of -inf for the mask": "a bias of -inf hides a key as a mask does, so the output is the same",
    "a mask for causal and window": "a mask that keeps the same keys replaces causal and window, so the output is the same",
    "mask and bias expanded": "mask and bias expanded to all scores say what they said, so the output is the same",
    "q * 2^n and k / 2^n": "powers of two cancel in q @ k.T without rounding, so the output is the same",
    "q * 4^n and scale / 4^n": "powers of four cancel in scale * (q @ k.T) without rounding, so the output is the same",
    "-q and -scale": "two signs cancel in scale * (q @ k.T), so the output is the same",
    "v * 2^n": "the output is linear in v, so it is multiplied by the same power of two",
    "-v": "the output is linear in v, so its sign changes and nothing else",
    "keys repeated for each query head": "every query head gets a copy of the key head it reads, so the output is the same",
    "some heads alone": "heads don't see each other, so the ones that are left give what they gave",
    "one batch alone": "batches don't see each other, so the one that is left gives what it gave",
    "a bias for ALiBi": "slopes times distances, added as a bias, are what ALiBi adds, so the output is the same",
    "some queries alone": "queries don't see each other, so the ones that are left give what they gave",
    "queries permuted": "queries in another order give the rows of the output in that order",
    "features of 0 appended": "features of 0 add nothing to q @ k.T, and those of v give features of 0",
    "some value features alone": "features of v don't see each other, so the ones that are left give what they gave",
    "keys permuted": "softmax has no order, so keys and values in another order give the same output",
    "keys masked or removed": "a key that a mask hides counts no more than one that is gone, so both give one output",
    "masked keys appended": "keys that a mask hides count for nothing, so the output is the same",
    "every key twice": "every key and value twice gives twice as many weights half as large, so the output is the same",
    "v in two parts": "the output is linear in v, so the outputs for two parts that add up to v add up to the output",
    "queries and keys cut off under causality": "what is cut off was hidden from the queries that are left",
    "features of q and k turned alike": "order and signs of the features cancel in q @ k.T, so the output is the same",
    "a number added to every score": "softmax doesn't see a number that is added to every score, so the output is the same",
    "sinks as one more key": "a sink is the score of one more key whose value is 0, so the output is the same",
    "v = 1 gives 1": "weights add up to 1, so values of 1 give outputs of 1",
    "between the smallest and the largest v": "a weighted mean lies between the smallest and the largest value",
}
"""Why each relation holds, by its name in fuzz/check/oracle/attention/relation_table.py."""


def relation_of(message: str) -> str:
    """The relation that a finding's message says is broken, "" where it is about the call of the case itself."""
    name = message.partition(": ")[0]
    return name if name in MEANINGS else ""


def is_of_another_call(message: str) -> bool:
    """Whether a finding is about a further call with other arguments, so that its numbers, those of the case, are right."""
    return bool(relation_of(message)) or message.startswith("called again ")


def explained(message: str) -> str:
    """What a broken relation means, in one line; "" where there is none."""
    name = relation_of(message)
    return f"the function was called again with other arguments ({name}): {MEANINGS[name]}" if name else ""
