"""Finds the dropout mask of an attention function from its results, and checks it.

With columns of the identity as values, the output is the weights. With a scale of 0 and no other option, all weights
are 1 / kv_len before dropout, so every nonzero weight was kept. (With real scores, small weights may underflow.) The
call is then judged with this mask. It is wrong if any of these holds:

- Random numbers depend on more than positions and the seed.
- Kept weights are not scaled.
- Backward drops other weights than forward.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fuzz.check.judge import constants
from fuzz.check.judge.attention.error_bound import ill_conditioned
from fuzz.check.judge.row_error_bound import first_index
from fuzz.check.judge.verdict import conclude
from fuzz.check.run.attention.call import Call, Exact
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import DropoutMask, NotFinite, Value

TensorFunction = Callable[..., Tensor]


def extract_mask(attend: TensorFunction, call: Call, pieces: int | None = None) -> Tensor:
    """The weights that `attend` keeps under the dropout of a call: bool [batch, heads, seq_len, kv_len].

    Makes a call for each of the first `pieces` of value_dim keys, by default for all. Raises KeyError without dropout,
    and exceptions of `attend`.
    """
    keys, width = call.v.shape[2:]
    equal = Call(call.q.detach(), call.k.detach(), call.v, {"scale": 0.0, "dropout": call.options["dropout"]})
    whole = torch.eye(keys, math.ceil(keys / width) * width if width else 0, dtype=call.v.dtype, device=call.v.device)
    identity = itertools.islice(whole.split(width, -1) if width else (), pieces)
    with torch.no_grad():
        found = [equal.replace(v=piece.expand(call.v.shape).contiguous()).run(attend) for piece in identity]
    return torch.cat([call.q.new_empty(*call.q.shape[:3], 0), *found], -1)[..., :keys] != 0


def check_dropout(attend: TensorFunction, call: Call) -> tuple[Tensor, list[DropoutMask]]:
    """The mask of `attend` in a call, and faults of its keep rate, repetition and dependence on the seed.

    Raises as `extract_mask`.
    """
    p, seed = call.options["dropout"]
    mask = extract_mask(attend, call)
    if not mask.numel():
        return mask, []
    if not 0 < p < 1:
        share = float(mask.double().mean())
        return mask, [] if share == (p <= 0) else [DropoutMask("extreme_rate", p, seen=share)]
    found = [*_check_rates(mask, p), *_check_repeats(mask, p)]
    if not torch.equal(mask, extract_mask(attend, call)):
        found.append(DropoutMask("not_repeatable", p, seeds=(seed,)))
    other = extract_mask(attend, call.replace(dropout=(p, seed + 1)))
    found += _check_independence(mask, other, DropoutMask("same_for_seeds", p, seeds=(seed, seed + 1)))
    return mask, found


def _check_rates(mask: Tensor, p: float) -> Iterator[DropoutMask]:
    """A keep rate that differs from 1 - p, over all weights or at an index of an axis."""
    parts: list[tuple[str, Tensor]] = [("", mask.flatten().unsqueeze(0))]
    parts += [(axis, mask.movedim(number, 0).flatten(1)) for number, axis in enumerate(_AXES) if mask.shape[number] > 1]
    for axis, rows in parts:
        kept, count = rows.sum(1).tolist(), rows.shape[1]
        doubts = [bound_chance(number, count, 1 - p, constants.MASK_QUANTUM) for number in kept]
        worst = max(range(len(doubts)), key=doubts.__getitem__)
        if doubts[worst] > constants.MASK_NEG_LOG_PROBABILITY:
            errors = (kept[worst] - count * (1 - p)) / math.sqrt(count * p * (1 - p))
            index = worst if axis else None
            yield DropoutMask("keep_rate", p, kept[worst], count, expected=1 - p, worst=errors, axis=axis, index=index)
            return


_AXES = ("batch", "head", "query", "key")


def _check_repeats(mask: Tensor, p: float) -> Iterator[DropoutMask]:
    """A mask that repeats a few indices, or a power of two, further along an axis."""
    for number, axis in enumerate(_AXES):
        size = mask.shape[number]
        for lag in constants.MASK_LAGS:
            if lag >= size:
                break
            left, right = mask.narrow(number, 0, size - lag), mask.narrow(number, lag, size - lag)
            found = list(_check_independence(left, right, DropoutMask("repeated", p, axis=axis, lag=lag)))
            if found:
                yield found[0]
                break


def _check_independence(left: Tensor, right: Tensor, problem: DropoutMask) -> Iterator[DropoutMask]:
    """`problem`, if two masks agree in more elements than independent masks do."""
    p = problem.p
    agree, count = int((left == right).sum()), left.numel()
    # The actual keep rates decide how often independent masks agree.
    a, b = float(left.double().mean()), float(right.double().mean())
    expected = min(max(a * b + (1 - a) * (1 - b), p * p + (1 - p) ** 2), 1.0)
    if agree > expected * count and bound_chance(agree, count, expected, 0.0) > constants.MASK_NEG_LOG_PROBABILITY:
        yield replace(problem, count=agree, total=count, seen=agree / count, expected=expected)


def bound_chance(number: int, count: int, share: float, quantum: float) -> float:
    """-log of Chernoff's bound on P(`number` or worse among `count`), for a share within `quantum` of `share`."""
    if not count:
        return 0.0
    seen = number / count
    share = min(max(seen, share - quantum, 0.0), share + quantum, 1.0)
    doubt = 0.0
    for mine, theirs in ((seen, share), (1 - seen, 1 - share)):
        if mine > 0:
            doubt += math.inf if theirs <= 0 else mine * math.log(mine / theirs)
    return count * max(0.0, doubt)


def find_nonfinite(call: Call, rounds: tuple[str, ...]) -> SubjectResult | None:
    """The verdict on an output that is not finite, if it is finite under every dropout mask."""
    out, (p, _) = call.out, call.options["dropout"]
    if out is None or bool(out.isfinite().all()):
        return None
    exact = Exact(call.replace(dropout=None))
    largest = (1 / (1 - p) if p < 1 else 0.0) * (exact.weights @ exact.v.abs())
    firm = exact.live & ~ill_conditioned(exact, rounds)
    lost = firm & ~out.isfinite() & (largest < constants.finite_limit(out.dtype))
    if not bool(lost.any()):
        return None
    numbers = {"rows_wrong": float(lost.any(-1).sum()), "rows_total": float(lost[..., 0].numel())}
    failure = NotFinite(Value.of_result("out"), int(lost.sum()), first_index(lost))
    return conclude(Verdict.NONFINITE, failure, numbers, failure.value, wrong=lost)
