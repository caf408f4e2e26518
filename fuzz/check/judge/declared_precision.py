"""Judges a run beside eager at another precision, which its compiler declares (`CompilerCapabilities.precisions`)."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fuzz.check.judge import constants
from fuzz.check.judge.case_run import CaseRun
from fuzz.check.judge.doubt import Doubt
from fuzz.check.judge.modes import Noise
from fuzz.check.judge.operations import RANDOM, is_exact
from fuzz.check.judge.verdict import Judge, RightRuns
from fuzz.check.run.tensor_memory import name_dtype
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import RightAt

Narrower = Mapping[torch.dtype, torch.dtype]


def judge_at_declared(doubt: Doubt) -> SubjectResult:
    """`precision_policy` with the dtypes at which the run is right; the judgement of `doubt` if there are none."""
    assert doubt.subject.compiler is not None
    for narrower in list_narrower(doubt.subject.compiler.capabilities.precisions):
        # An integer beyond the range wraps in arithmetic, and saturates if it is converted.
        for saturates in (False, True) if any(not dtype.is_floating_point for dtype in narrower) else (False,):
            probe = Narrowed(narrower, saturates=saturates)
            eager = doubt.case.execute(mode=probe)
            if not probe.changed:
                continue
            judge = _make_judge(doubt.case, probe, replace(eager, shared=doubt.case.eager.shared))
            if not judge.judge_numbers(doubt.run).verdict.has_wrong_numbers:
                at = tuple(sorted(name_dtype(narrower[dtype]) for dtype in probe.changed))
                return replace(
                    doubt.judgement, verdict=Verdict.PRECISION_POLICY, failure=RightAt(at), where=None, judged=None
                )
    return doubt.judgement


def list_narrower(precisions: Mapping[str, tuple[str, ...]]) -> Iterator[Narrower]:
    """The ways to choose a declared dtype for each dtype, without those that are no narrower."""
    pairs = {
        getattr(torch, dtype): [made for made in (getattr(torch, name) for name in names) if _is_narrower(made, dtype)]
        for dtype, names in precisions.items()
    }
    pairs = {dtype: made for dtype, made in pairs.items() if made}
    for chosen in itertools.product(*pairs.values()) if pairs else ():
        yield dict(zip(pairs, chosen, strict=True))


def _is_narrower(made: torch.dtype, dtype_name: str) -> bool:
    dtype = getattr(torch, dtype_name)
    if made.is_floating_point != dtype.is_floating_point:
        return False
    if made.is_floating_point:
        return torch.finfo(made).eps > torch.finfo(dtype).eps
    return torch.iinfo(made).max < torch.iinfo(dtype).max


def _make_judge(case: CaseRun, narrowed: "Narrowed", eager: Any) -> Judge:
    """Judges beside eager at this precision, and its replicas under noise of one ulp of it."""
    integers = {dtype: made for dtype, made in narrowed.narrower.items() if not made.is_floating_point}
    exact = case.compute_exactly(Narrowed(integers, saturates=narrowed.saturates))
    floats = [narrowed.narrower.get(dtype, dtype) for dtype in (case.coarsest(), *narrowed.changed)]

    def run(number: int) -> Any:
        return case.execute(mode=Narrowed(narrowed.narrower, saturates=narrowed.saturates, seed=number))

    count = constants.REPLICAS_BEFORE_WRONG
    right = RightRuns(exact, tuple(map(run, range(count))), count=count, choosing=max(constants.CHOOSING_RUNS))
    coarsest = constants.coarsest(*(dtype for dtype in floats if dtype.is_floating_point))
    return Judge(eager, lambda *_: right, lambda: coarsest, random=False, derives=case.request.derives)


class Narrowed(Noise):
    """Each operation computes from operands, and gives results, that are rounded to a narrower dtype. They stay tensors
    of their own dtype.

    narrower: the dtype by dtype
    saturates: integers beyond its range become its ends; else they wrap
    seed: results that round move by an ulp of the narrower dtype, as under `Noise`; None: they stay
    """

    def __init__(self, narrower: Narrower, *, saturates: bool = False, seed: int | None = None) -> None:
        super().__init__(seed or 0)
        self.narrower, self.saturates = narrower, saturates
        self.changed: set[torch.dtype] = set()
        """The dtypes of which a value was rounded."""
        self._is_moving = seed is not None

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.is_view:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        moves = self._is_moving and not (is_exact(func, args, kwargs) or name in RANDOM)
        if func._schema.is_mutable:
            target = kwargs.get("out", args[0] if args else None)
            result = func(*args[:1], *tree_map(self._round, args[1:]), **kwargs)
            if isinstance(target, Tensor):
                target.copy_(self._finish(name, target, moves=moves))
            return result
        result = func(*tree_map(self._round, args), **tree_map(self._round, kwargs))
        return tree_map(lambda value: self._finish(name, value, moves=moves), result)

    def _finish(self, name: str, value: Any, *, moves: bool) -> Any:
        if not isinstance(value, Tensor):
            return value
        narrow = self._narrow(value)
        if moves and narrow.is_floating_point():
            narrow = narrow.clone() if narrow is value else narrow
            self._move(name, narrow, None)
        return narrow.to(value.dtype)

    def _round(self, value: Any) -> Any:
        return self._narrow(value).to(value.dtype) if isinstance(value, Tensor) else value

    def _narrow(self, value: Tensor) -> Tensor:
        made = self.narrower.get(value.dtype)
        if made is None:
            return value
        if self.saturates and not made.is_floating_point:
            narrow = value.clamp(torch.iinfo(made).min, torch.iinfo(made).max).to(made)
        else:
            narrow = value.to(made)
        back = narrow.to(value.dtype)
        if not torch.equal(back.nan_to_num(), value.nan_to_num()):
            self.changed.add(value.dtype)
        return narrow
