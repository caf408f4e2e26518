"""The changes that drawn cases get, each in a share of the cases: one table, which one walk draws from."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from generators.program.case import Case
from generators.program.changes import KINDS
from generators.program.emit import is_random
from generators.program.regions import REGIONS
from generators.program.writes import is_written
from generators.sampling.builder import draw_valid, insert
from generators.sampling.calls import add_around, add_call, add_sizes, recompute
from generators.sampling.changes import add_change, add_layers
from generators.sampling.choices import Choices
from generators.sampling.dropout import show_dropouts
from generators.sampling.dtypes import write_complex, write_far_integers, write_reduced
from generators.sampling.forms import write_forms
from generators.sampling.numbers import add_numbers
from generators.sampling.operations import DRAWN, add_operation
from generators.sampling.regions import add_region
from generators.sampling.scans import add_carries
from generators.sampling.states import change_states
from generators.sampling.windows import write_places
from generators.sampling.writes import insert_write, read_by_strides, share_arguments

Share = float | Callable[[Case], float]
"""A share of cases, or for a case how likely it is to get a mutation."""
_ONCE = {1: 1.0}
_FEW = {1: 5.0, 2: 3.0, 3: 1.0}
_PLAIN = ("autocast", "dynamic")


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a drawn case."""

    share: Share  # of modules
    apply: Callable[..., Case]
    """Draws the change of a case from choices: with `kinds`, of one of these. It may raise CaseError, return an invalid
    case, or the case itself if the change does not fit."""
    excludes: tuple[str, ...] = ()  # cases with one of these fields do not get it
    counts: Mapping[int, float] = field(default_factory=lambda: _ONCE)  # how many times it is applied
    tries: int = 1  # how many times it is drawn until the case is valid
    kinds: Collection[str] = ()

    def draw(self, case: Case, c: Choices, kinds: Collection[str] = ()) -> Case:
        """The case with the change, or with one of these kinds; unchanged if no draw is valid."""
        if any(getattr(case, name) for name in self.excludes):
            return case
        of = [kinds or self.kinds] if self.kinds else []
        for _ in range(c.draw(self.counts)):
            case = draw_valid(case, lambda one: self.apply(one, c, *of), self.tries)
        return case


def _share_of_calls(case: Case) -> float:
    # Training runs longer, and a buffer keeps written values.
    return 0.35 if is_written(case) else 0.15 if case.training else 0.055


def _cast(case: Case, c: Choices) -> Case:
    return replace(case, autocast=c.draw({"bfloat16": 3.0, "float16": 1.0}), contracts=())


def _return_again(case: Case, c: Choices) -> Case:
    return replace(case, returns=(*case.returns, c.pick(case.returns)))


MUTATIONS: Mapping[str, Mutation] = {
    "autocast_within": Mutation(0.03, _cast),
    "writes": Mutation(0.06, insert_write, ("autocast",), _FEW, tries=6),
    "calls": Mutation(_share_of_calls, add_call, (), {1: 5.0, 2: 4.0, 3: 1.0}, tries=8),
    "recomputed": Mutation(lambda case: 0.25 * (case.training and bool(case.calls)), recompute),
    "operations": Mutation(0.08, add_operation, ("autocast",), {1: 5.0, 2: 3.0, 3: 2.0}, kinds=DRAWN),
    "changes": Mutation(lambda case: 0.5 if case.calls else 0.01, add_change, (), {2: 3.0, 3: 4.0, 4: 2.0}, 8, KINDS),
    "regions": Mutation(0.08, add_region, ("checkpoint",), {1: 5.0, 2: 2.0, 3: 1.0}, kinds=REGIONS),
    "carries": Mutation(0.02, add_carries, ("checkpoint", "autocast"), tries=8),
    # More dropout, and what it drops.
    "masks": Mutation(lambda case: 0.3 * is_random(case), show_dropouts, ("calls",)),
    # Beyond 2^31, or around the end of a dtype.
    "integers": Mutation(0.03, partial(insert, write=write_far_integers, alone=0.75), _PLAIN, tries=8),
    "reduced_integers": Mutation(0.017, partial(insert, write=write_reduced, alone=0.9), _PLAIN, tries=8),
    "complex_numbers": Mutation(0.007, partial(insert, write=write_complex, alone=0.9), _PLAIN, tries=8),
    # In tensors that lie in memory in other orders.
    "places_in_memory": Mutation(0.007, partial(insert, write=write_places, alone=0.9), _PLAIN, tries=8),
    "as_strided": Mutation(0.02, partial(insert, write=read_by_strides), ("regions",), tries=6),
    "shared_arguments": Mutation(0.015, share_arguments, ("regions", "autocast"), tries=8),
    "odd_views": Mutation(0.015, partial(insert_write, is_odd=True), ("regions",), tries=8),
    # They are called several times, with other numbers.
    "numbers": Mutation(0.03, add_numbers, ("regions", "setup")),
    "autocast_around": Mutation(0.03, add_around, tries=8),
    "returned_again": Mutation(0.01, _return_again),
    "states": Mutation(0.15, change_states),
    "layer": Mutation(0.0, add_layers),
    # For compilers of inference programs.
    "forms": Mutation(0.0, partial(insert, write=write_forms, alone=0.64, ends=True)),
    "sizes": Mutation(0.0, add_sizes, counts={1: 3.0, 2: 1.0}, tries=8),
}
"""By name, in the order in which a case gets them. `--draw` takes the names and the kinds."""
SHARES = {name: row.share for name, row in MUTATIONS.items() if row.share}
TARGETED = {name: SHARES[name] for name in ("masks", "states")}
"""The shares in seeds and variants, which are near something that they may reach."""


def mutate(
    case: Case,
    choose: Callable[[str], Choices],
    shares: Mapping[str, Share] = SHARES,
    accepts: Callable[[Case], bool] = lambda _: True,
) -> Case:
    """The case with mutations in these shares, each if it is accepted. `choose` gives choices for each, by its name."""
    for name, share in shares.items():
        c = choose(name)
        if c.chance(share(case) if callable(share) else share):
            changed = MUTATIONS[name].draw(case, c)
            case = changed if accepts(changed) else case
    return case
