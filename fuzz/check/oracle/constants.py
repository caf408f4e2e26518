"""The numbers the oracle judges with, each with its source. Measurements: torch 2.13.0, CPU (docs/oracle.md)."""

import torch

#: Unit roundoff: half the distance from 1 to the next number. IEEE 754; bfloat16 keeps 8 significant bits.
UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

LOW_PRECISION = (torch.float16, torch.bfloat16)

#: A row is wrong when its error exceeds this many times what rounding explains. Replicas move every result by a whole
#: unit in the last place, 3.5 times the root mean square of what rounding does: of 1,300 programs right ones reached
#: 1.0 (low precision) and 5.8. A result that has nothing to do with the truth has an error of about its scale, which is
#: some 100 in bfloat16: the limit has to lie well below.
WRONG_LOW_PRECISION = 2.0
WRONG = 32.0

#: Share of a tensor's largest magnitude that counts, beside a row's own, as the size of the terms behind the row.
#: Needed where a row is exactly 0 or sees one key only: terms cancel, and what is left is rounding of the terms.
TENSOR_SHARE = 0.125

#: A gradient is 0 in truth when it is smaller than this share of the largest one.
CANCELLED = 2.0**-24

#: Eager that moves by more than this share of the value under one-ulp noise says nothing: ill-conditioned.
ILL_CONDITIONED = 0.05

#: Replicas of eager under noise. The second number replaces the first before anything is called wrong: a ReLU or a
#: maximum within rounding of a tie goes either way, and a few replicas can all go eager's way.
REPLICAS = 3
REPLICAS_BEFORE_WRONG = 16

#: An operation that is handed finite numbers beyond this may overflow within, where its result would not: products of
#: three such numbers, and sums of some thousands of them, stay below the largest float32. The limits above serve for
#: operations as well. Measured over 34,309 results of 2,000 programs: right ones took at most 0.11 of their limit.
NO_OVERFLOW_WITHIN = 2.0**40

#: Pairs of runs with other dropout seeds: more are taken only while a statistic of fuzz/check/oracle/dropout.py exceeds
#: the limit that goes with so many, for a whole tensor and for parts of it. The last limit bounds false alarms whatever
#: distribution the numbers have; the others only decide over cost. Measured: of 520 right programs 12 exceeded the
#: limits of 16 seeds, none those of 64; of 100 none exceeded those of 256 (4.1 and 4.4).
DROPOUT_SEEDS = (16, 64, 256)
DROPOUT_WHOLE = {16: 2.6, 64: 4.0, 256: 8.0}
DROPOUT_PARTS = {16: 3.5, 64: 5.0, 256: 8.0}

#: Smallest relative differences that count. Kernels round p to a multiple of 1/256 (FlashAttention 2), which changes
#: the variance by 2 % at p = 0.1.
DROPOUT_MEAN = 0.01
DROPOUT_VARIANCE = 0.05

#: The slope: share of the prediction's variance that a miss must exceed, and of the seeds that must miss.
DROPOUT_SHARE = 0.05
DROPOUT_SLOPE = 0.1

#: Inputs are moved by these shares of themselves; beyond the last number an element is a mask's fill.
DROPOUT_STEP = 2.0**-6
DROPOUT_STEP_LOW = 2.0**-4
DROPOUT_LARGE = 1e3

#: Standard deviation from seed to seed, in units of roundoff, below which an element tells of rounding; how many times
#: further than eager under noise a statistic is to be off; elements kept of a value; seeds between samples; CPU time.
DROPOUT_FLOOR = 16.0
DROPOUT_NOISE = 2.0
DROPOUT_ELEMENTS = 8192
DROPOUT_APART = 1_000_000
DROPOUT_SECONDS = 20.0

#: A dropout mask is wrong when -log of Chernoff's bound on its probability exceeds the first number: 2e-11, for some
#: 1000 tests of a mask. Its keep rate may be off by what rounding p to 8 bits does, as FlashAttention 2 rounds it.
MASK_NEG_LOG_PROBABILITY = 24.5
MASK_QUANTUM = 1 / 256

#: The largest error of an attention kernel, in units of its first-order bound (attention/error_bound.py). Measured, and
#: from the project's notes on numerics: right kernels reach 1.9 (bfloat16), 2.1 (float16), 5.0 (float32).
ERROR_BOUNDS_LOW_PRECISION = 4.0
ERROR_BOUNDS = 12.0

#: Simulated kernels of a call in low precision, and how many before a trend is called wrong.
SIMULATED_KERNELS = 8
SIMULATED_KERNELS_BEFORE_WRONG = 32

#: Where scores take few values, weights round alike and errors add up. An error may be so many times the largest one of
#: simulated kernels. Measured: bfloat16, tokens drawn from 16, 1,024 and 2,048 keys: right kernels reach 9.2 bounds.
SIMULATED_KERNELS_MARGIN = 1.5

#: A statistic over all elements is wrong if it is so many standard deviations from that of simulated kernels and also
#: matters: a bias, or a change of the scale, of this share of the unit roundoff; errors, of the whole or of the worst
#: row, so many times those of simulated kernels. Numbers below so many times the smallest normal one are left out, and
#: errors below this share of the bound (of a right 0, say, which simulated kernels round to exactly).
#: Measured: right functions reached 4.3 deviations where it mattered, and 1.23 (whole) and 1.33 (row) times the errors.
#: CPU flash, whose exponentials are off by up to 1e-4, reaches 1.26 times the errors in float16; the limit for a row
#: applies to it.
TREND_DEVIATIONS = 8.0
TREND_SHARE = 1 / 32
RMS_RATIO = 1.3
SMALLEST_TREND = 16.0
SMALLEST_TREND_RATIO = 1e-3
ROW_RATIO = 2.0

#: Weights that are exp of so much less than the largest one's, 2e-9, do not count; and exp(0.25) is 1.28, of which the
#: first order is off by a tenth: a score that may be off by more says nothing of its weight.
NEGLIGIBLE = 20.0
MAX_SCORE_ERROR = 0.25

#: Scores beyond this overflow in float32, wherever a kernel multiplies by the scale.
LARGEST_SCORE = torch.finfo(torch.float32).max / 16

#: The relative change of the scale behind a trend's direction: float64 leaves ten digits of the difference.
STRETCH = 1e-6

#: Block sizes of simulated kernels. Queries: dk and dv are rounded after each block. CPU flash's have 32 or more.
#: Keys: an online softmax rescales after each block; those of kernels have 16 to 128, and the last size is all keys.
QUERY_BLOCK = 32
KEY_BLOCKS = (16, 64, 128, 1 << 20)

#: A dropout mask is read off in at most so many pieces as wide as values may be: a dozen calls each, short on CUDA.
PIECES = {"cpu": 2, "cuda": 16}

#: A result within so many unit roundoffs of the dtype's largest number may be infinite.
FINITE_MARGIN = 16

#: A fill of masked scores this low or lower is as good as -inf: exp of it is 0 beside the scores of a case.
LOWEST_FILL = -1e4

#: Masks are compared with themselves so many indices further along an axis: near ones, and powers of two as tiles are.
MASK_LAGS = (*range(1, 8), *(1 << power for power in range(3, 20)))

#: Axes longer than this are told by ranges of wrong indices alone, and no more ranges of an axis are told.
LONGEST_AXIS = 512


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    """The least precise of float dtypes."""
    return max(dtypes, key=lambda dtype: UNIT_ROUNDOFF[dtype])


def finite_limit(dtype: torch.dtype) -> float:
    """The magnitude from which a result in this dtype may be infinite."""
    return torch.finfo(dtype).max * (1 - FINITE_MARGIN * UNIT_ROUNDOFF[dtype])


def suspicious_share(dtype: torch.dtype) -> float:
    """The share of a row's size from which eager is so far off, in a program whose coarsest float dtype is `dtype`,
    that its operations are audited. Measured over 300 generated programs: 1 goes beyond."""
    return ILL_CONDITIONED if dtype in LOW_PRECISION else ILL_CONDITIONED / 100


#: Two float64 results of one formula, spelled in two ways, differ by less than this share of the largest number.
#: Numbers that a replacement keeps in float32 are off by up to 2**-24 of themselves. In low precision programs round
#: their constants, a scale among them, which a replacement may take from head_dim: a few roundoffs, of a score.
REWRITE_AGREEMENT = 1e-6
REWRITE_AGREEMENT_ROUNDOFFS = 4.0
