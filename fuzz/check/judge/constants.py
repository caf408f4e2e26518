"""The limits of the oracle, each with its source. Measurements: torch 2.13.0, CPU (docs/oracle.md)."""

import torch

#: Unit roundoff: half the distance from 1 to the next number. IEEE 754; bfloat16 keeps 8 significant bits.
UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

LOW_PRECISION_DTYPES = (torch.float16, torch.bfloat16)

#: A row is wrong if its error exceeds this multiple of the error that rounding explains. Replicas move every result by
#: a whole unit in the last place, 3.5 times the root mean square of rounding. Of 1,300 programs, right programs reached
#: 1.0 (low precision) and 5.8. A random result has an error of about its scale, some 100 in bfloat16, far above the
#: limit.
WRONG_LOW_PRECISION = 2.0
WRONG = 32.0

#: The size of a row is its own largest magnitude, plus this share of the tensor's. In a row that is 0, or has one key,
#: terms cancel and leave their rounding.
TENSOR_SHARE = 0.125

#: A gradient smaller than this share of the largest gradient counts as 0 in truth.
CANCELLED = 2.0**-24

#: The size of the terms behind an output that is 0 in truth, if the program computes derivatives: each begins with a
#: gradient of 1. The derivative of the sum of a softmax is 0, and holds the rounding of terms of that size.
TERMS_OF_DERIVATIVES = 1.0

#: A row is ill-conditioned if noise of one ulp moves eager by more than this share of its size. `suspicious_share` is
#: made of it too. A choice, not a measurement: of such a row fewer than 5 bits are left. PyTorch's torchfuzz
#: takes the same share, of sums.
ILL_CONDITIONED = 0.05

#: The number of replicas of eager under noise: at first, and before a value is called wrong. Rounding decides which of
#: two nearly equal numbers is the maximum, and all of a few replicas may decide as eager does.
REPLICAS = 3
REPLICAS_BEFORE_WRONG = 16

#: The number of runs of eager with choices that larger noise makes, before a value is called wrong that may depend on a
#: choice: at first, and if at most `FEW_WRONG` elements are wrong. A choice that one run in ten makes is missing from
#: 48 with a probability below 1 %, and from 192 with one below 2e-9. The noise has these numbers of ulps, since a right
#: program may be off by more than the noise of replicas: see `WRONG`. In every other run it moves one element of eight:
#: some choices take numbers of which one alone moves.
CHOOSING_RUNS = (48, 192)
FEW_WRONG = 16
CHOOSING_ULPS_LOW_PRECISION = 2
CHOOSING_ULPS = 8
CHOOSING_SHARES = (1.0, 1 / 8)

#: The number of runs in other orders that the documentation leaves open: at first, and before a value is called wrong.
#: Of five elements that are equally likely to be the last of several writes, each is missing from 64 runs with a
#: probability of 6e-7.
ORDERS = 16
ORDERS_BEFORE_WRONG = 64

#: The range of an element that depends on a choice is known if this share of runs gave either end: the element has few
#: possible values. Else a value beyond may be right too. If runs draw their choices alike, 2 of 49 elements are beyond
#: the smallest and largest of 48 runs. A share above `BEYOND_SHARE` is no chance.
END_SHARE = 0.1
BEYOND_SHARE = 0.25

#: An operation on larger finite numbers may overflow inside although its result is finite. Products of three smaller
#: numbers, and sums of thousands of these, stay below the largest float32. The limits above also hold for operations:
#: of 34,309 results of 2,000 programs, right results took at most 0.11 of their limit.
NO_OVERFLOW_WITHIN = 2.0**40

#: Pairs of runs with other dropout seeds. More pairs run while a statistic of fuzz/check/judge/dropout.py, of a whole
#: tensor or of parts, exceeds its limit. The limit of 256 seeds bounds false alarms for any distribution. The other
#: limits bound the cost. Right programs beyond the limits:
#:      seeds    16         64         256
#:      beyond   12 of 520  0 of 520   0 of 100 (reached: 4.1 and 4.4)
DROPOUT_SEEDS = (16, 64, 256)
DROPOUT_WHOLE = {16: 2.6, 64: 4.0, 256: 8.0}
DROPOUT_PARTS = {16: 3.5, 64: 5.0, 256: 8.0}

#: The smallest relative differences that count. FlashAttention 2 rounds p to a multiple of 1/256, which changes the
#: variance by 2 % at p = 0.1.
DROPOUT_MEAN = 0.01
DROPOUT_VARIANCE = 0.05

#: A seed misses the slope if its squared error exceeds the first share of the prediction's variance. The gradient can
#: be wrong only if the second share of seeds misses.
DROPOUT_SHARE = 0.05
DROPOUT_SLOPE = 0.1

#: Inputs are moved by these fractions of their value. An element beyond the last number is the fill of a mask.
DROPOUT_STEP = 2.0**-6
DROPOUT_STEP_LOW = 2.0**-4
DROPOUT_LARGE = 1e3

#: An element that varies from seed to seed by fewer units of roundoff, or by fewer times what noise moves it, varies by
#: rounding.
DROPOUT_FLOOR = 16.0
DROPOUT_NOISE = 2.0  # a statistic must exceed eager's under noise by this factor
DROPOUT_ELEMENTS = 8192  # the most elements of a value that are compared
DROPOUT_APART = 1_000_000  # seeds between samples
DROPOUT_SECONDS = 20.0  # CPU time of all runs

#: A dropout mask is wrong when -log of Chernoff's bound on its probability exceeds this: 2e-11, for some 1000 tests of
#: a mask. Its keep rate may be off by the quantum, since FlashAttention 2 rounds p to 8 bits.
MASK_NEG_LOG_PROBABILITY = 24.5
MASK_QUANTUM = 1 / 256

#: Masks that a program returns are compared over this many of its calls, fewer for large masks. The share of runs in
#: which independent masks are called repeated.
REPEATED_CALLS = (8, 2)
REPEATED_ELEMENTS = 1 << 17
REPEATED_FALSE_ALARMS = 1e-9

#: The largest error of an attention kernel, in units of its first-order bound (attention/error_bound.py). Measured, and
#: from the project's notes on numerics: right kernels reach 1.9 (bfloat16), 2.1 (float16), 5.0 (float32).
ERROR_BOUNDS_LOW_PRECISION = 4.0
ERROR_BOUNDS = 12.0

#: The number of simulated kernels of a low-precision call: at first, and before a trend is called wrong.
SIMULATED_KERNELS = 8
SIMULATED_KERNELS_BEFORE_WRONG = 32

#: If scores take few values, weights round alike and errors add up. The limit is at least this multiple of the largest
#: error of simulated kernels. In bfloat16, with tokens drawn from 16 and 1,024 or 2,048 keys, right kernels reach 9.2
#: bounds.
SIMULATED_KERNELS_MARGIN = 1.5

#: A trend is wrong if it is further from simulated kernels than `TREND_DEVIATIONS`, and beyond the limit of its kind.
#: Right functions reached 4.3 deviations beyond a limit, and 1.23 (whole) and 1.33 (row) times the errors. CPU flash,
#: whose exponentials are off by up to 1e-4, reaches 1.26 times the errors in float16. `ROW_RATIO` limits both for it.
TREND_DEVIATIONS = 8.0  # standard deviations from simulated kernels
TREND_SHARE = 1 / 32  # a bias or change of the scale, in units of roundoff
RMS_RATIO = 1.3  # rms error of the whole over that of simulated kernels
ROW_RATIO = 2.0  # the same for the worst row
SMALLEST_TREND = 16.0  # numbers below this multiple of the smallest normal number are left out

#: A call with at most this many scores is judged on the CPU. On an H200, reading a number that the GPU computed takes
#: 0.2 ms in the only process that uses it, and 2.1 ms in each of 12. A CPU takes 0.2 ms for an operation on 2^18
#: float64 numbers.
SCORES_ON_CPU = 1 << 18

#: A weight is negligible if its score is lower than the largest score by this much: exp(-20) is 2e-9.
NEGLIGIBLE = 20.0

#: The first-order bound holds up to this error of a score: exp(0.25) is 1.28, where the first order gives 1.25.
MAX_SCORE_ERROR = 0.25

#: Scores beyond this overflow in float32, wherever a kernel multiplies by the scale.
LARGEST_SCORE = torch.finfo(torch.float32).max / 16

#: The relative step of the numerical derivative by the scale. Float64 leaves ten digits of the difference.
STRETCH = 1e-6

#: Block sizes of simulated kernels. dk and dv are rounded after each block of queries; CPU flash has blocks of 32 or
#: more. An online softmax rescales after each block of keys; kernels have 16 to 128, and the last size is all keys.
QUERY_BLOCK = 32
KEY_BLOCKS = (16, 64, 128, 1 << 20)

#: The most pieces, each as wide as the values, in which a dropout mask is read. A piece takes a dozen calls.
PIECES = {"cpu": 2, "cuda": 16}

#: A result may be infinite within this many unit roundoffs of the dtype's largest number.
FINITE_MARGIN = 16

#: A mask is compared with itself, shifted along an axis by these numbers of indices: small ones, and sizes of tiles.
MASK_LAGS = (*range(1, 8), *(1 << power for power in range(3, 20)))

#: The most ranges of wrong indices of an axis.
LONGEST_AXIS = 512


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    return max(dtypes, key=lambda dtype: UNIT_ROUNDOFF[dtype])


def choosing_ulps(dtype: torch.dtype) -> int:
    """The noise that makes other choices."""
    return CHOOSING_ULPS_LOW_PRECISION if dtype in LOW_PRECISION_DTYPES else CHOOSING_ULPS


def finite_limit(dtype: torch.dtype) -> float:
    """The magnitude from which a result in this dtype may be infinite."""
    return torch.finfo(dtype).max * (1 - FINITE_MARGIN * UNIT_ROUNDOFF[dtype])


def suspicious_share(dtype: torch.dtype) -> float:
    """The error of eager, as a share of a row's size, beyond which its operations are audited.

    `dtype`: the coarsest float dtype of the program. Of 300 generated programs, 1 goes beyond.
    """
    return ILL_CONDITIONED if dtype in LOW_PRECISION_DTYPES else ILL_CONDITIONED / 100


#: A program and its replacement agree in float64 if they differ by less than this share of the largest number. Numbers
#: that a replacement keeps in float32 have relative errors of up to 2**-24.
REWRITE_AGREEMENT = 1e-6

#: Low-precision programs round constants such as the scale, which a replacement may take from head_dim.
REWRITE_AGREEMENT_ROUNDOFFS = 4.0
