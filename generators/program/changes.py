"""Changes of a module between calls: other parameters and layers, hooks, sizes marked dynamic, static or unbacked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from generators.errors import accepts, require, require_word
from generators.program.case import Case, Change, Op
from generators.program.ops import OPS, find_probability
from generators.program.sizes import Size
from generators.program.values import FLOATS, category
from generators.program.writes import list_written
from generators.reasons import Reason


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """A row of the table of changes."""

    effect: str  # in words
    target: str  # its `of`: a parameter, buffer, layer, argument; `module`: the module or a layer; `call`: nothing
    text: str  # a statement; for `call`, a context of the call. `several` replaces it if results are a tuple
    several: str = ""
    to: str = ""  # its `to`: a parameter or dtype
    is_hook: bool = False
    is_guarded: bool = False  # Dynamo guards it only if it is told to
    of_call: bool = False  # it lasts for one call
    training: bool = False  # it acts in training alone
    weight: float = 1.0  # how often it is drawn


def _hook(effect: str, text: str, several: str = "", *, training: bool = False) -> ChangeKind:
    return ChangeKind(effect, "module", text, several, is_hook=True, is_guarded=True, training=training, weight=1.5)


def _mark(effect: str, function: str, weight: float = 1.0) -> ChangeKind:
    return ChangeKind(effect, "argument", f"{function}({{of}}, {{axis}})", of_call=True, weight=weight)


def _stance(effect: str, stance: str) -> ChangeKind:
    return ChangeKind(effect, "call", f'torch.compiler.set_stance("{stance}")', of_call=True, weight=0.5)


_DOUBLED = "tuple(None if one is None else 2 * one for one in gradients)"
_ACCUMULATED = '{of}.register_post_accumulate_grad_hook(lambda own: setattr(own, "grad", 2 * own.grad))'
KINDS: dict[str, ChangeKind] = {
    "replaced": ChangeKind(
        "a parameter replaced", "parameter", "{of} = nn.Parameter(-0.5 * {of}.detach())", weight=2.0
    ),
    "data_replaced": ChangeKind("a parameter's data replaced", "parameter", "{of}.data = -0.5 * {of}.data"),
    "data_written": ChangeKind("a parameter's data overwritten", "parameter", "{of}.data.mul_(-0.5)"),
    "tied": ChangeKind("a parameter tied to another", "parameter", "{of} = {to}", to="parameter", weight=3.0),
    "frozen": ChangeKind("a parameter frozen", "parameter", "{of}.requires_grad_(False)", training=True),
    "trained": ChangeKind("a parameter no longer frozen", "parameter", "{of}.requires_grad_(True)", training=True),
    "cast": ChangeKind("a buffer in another dtype", "buffer", "{of} = {of}.to({to})", to="dtype", weight=3.0),
    "layer_replaced": ChangeKind("a layer replaced", "layer", "{of} = with_other_weights({of})", weight=3.0),
    "layer_eval": ChangeKind("a layer in eval", "layer", "{of}.eval()"),
    "layer_train": ChangeKind("a layer in train", "layer", "{of}.train()"),
    "pre_hook": _hook(
        "a hook before forward", "{of}.register_forward_pre_hook(lambda _, given: (2 * given[0], *given[1:]))"
    ),
    "forward_hook": _hook(
        "a hook after forward",
        "{of}.register_forward_hook(lambda _, given, result: 2 * result)",
        "{of}.register_forward_hook(lambda _, given, results: (2 * results[0], *results[1:]))",
    ),
    "backward_hook": _hook(
        "a hook after backward",
        f"{{of}}.register_full_backward_hook(lambda _, gradients, given: {_DOUBLED})",
        training=True,
    ),
    "gradient_hook": ChangeKind(
        "a hook of a parameter's gradient",
        "parameter",
        "{of}.register_hook(lambda gradient: 2 * gradient)",
        is_hook=True,
        training=True,
    ),
    "accumulated_hook": ChangeKind(
        "a hook of a parameter's sum of gradients", "parameter", _ACCUMULATED, is_hook=True, training=True
    ),
    "unhooked": ChangeKind("a hook removed", "call", "{hook}.remove()", is_guarded=True, weight=4.0),
    "force_eager": _stance("the stance force_eager", "force_eager"),
    "eager_on_recompile": _stance("the stance eager_on_recompile", "eager_on_recompile"),
    "dynamic": _mark("an axis marked dynamic", "torch._dynamo.maybe_mark_dynamic"),
    "static": _mark("an axis marked static", "torch._dynamo.mark_static"),
    "unbacked": _mark("an axis marked unbacked", "torch._dynamo.decorators.mark_unbacked", 0.5),
}
"""By name. Numbers change by powers of 2, so that no dtype rounds them."""


@dataclass(slots=True)
class _Changed:
    """The module after some changes."""

    case: Case
    written: set[str]  # the inputs and results that the case writes into
    hooks: int = 0
    frozen: set[str] = field(default_factory=set)

    def apply(self, change: Change) -> None:
        """Raises CaseError unless the change makes sense now."""
        require_word(change, "kind", KINDS, Reason.MALFORMED)
        case, row = self.case, KINDS[change.kind]
        items = {item.name: item for item in case.inputs}
        targets = list_changeable(case)
        for name, target in (("of", row.target), ("to", row.to)):
            known = targets.get(target, [""])
            fits = getattr(change, name) in known
            listed = ", ".join(filter(None, known)) or "nothing"
            require(fits, f"{change.kind}: {name} is {getattr(change, name)!r}, expected {listed}", Reason.MALFORMED)
        axes = items[change.of].shape if row.target == "argument" else (Size.of(2),)
        require(
            0 <= change.axis < len(axes),
            f"{change.kind}: axis is {change.axis}, expected 0 to {len(axes) - 1}",
            Reason.MALFORMED,
        )
        frozen = (change.of in self.frozen, "the parameter is frozen", Reason.HOOKED)
        types, drops = {_type_of(case, name) for name in (change.of, change.to)}, self._drops(change.of)
        unbacked = axes[change.axis].value(case.sizes) < 2
        faults = {
            "unbacked": (unbacked, "torch takes the size for 2 or more", Reason.UNBACKED),
            "tied": (len(types) > 1, "the types differ", Reason.TYPES),
            "gradient_hook": frozen,
            "accumulated_hook": frozen,
            "backward_hook": (not self._is_plain(change.of), "it takes floating tensors, and no writes", Reason.HOOKED),
            "cast": (change.of in self.written, "the case writes into the buffer", Reason.BUFFER_CAST),
            "layer_train": (drops, "it would draw dropout", Reason.REDRAWN),
            "unhooked": (not self.hooks, "there is no hook", Reason.MALFORMED),
        }
        if change.kind == "pre_hook" and not change.of:
            is_integral = any(category(item.dtype) != 2 for item in case.arguments[:1])
            faults[change.kind] = is_integral, "the first argument is not floating", Reason.TYPES
        if change.kind in faults:
            is_wrong, why, reason = faults[change.kind]
            require(not is_wrong, f"{change.kind}: {why}", reason)
        self.hooks += row.is_hook - (change.kind == "unhooked")
        if change.kind in ("frozen", "trained", "replaced"):
            (self.frozen.add if change.kind == "frozen" else self.frozen.discard)(change.of)

    def _drops(self, layer: str) -> bool:
        return any(op.name == layer and find_probability(op) for op in self.case.ops)

    def _is_plain(self, layer: str) -> bool:
        """Whether the module or layer takes floating tensors alone, and nothing is written."""
        masked = any(op.name == layer and op.attr("masks") for op in self.case.ops)
        floats = all(category(item.dtype) == 2 for item in self.case.arguments)
        return not self.written and (not masked if layer else floats)


def list_changeable(case: Case) -> dict[str, list[str]]:
    """The targets of changes, by `ChangeKind.target`; also the dtypes of a cast."""
    parameters = [item for item in case.inputs if item.parameter]
    layers = [op.name for op in case.ops if is_layer(op)]
    return {
        "parameter": [item.name for item in parameters if not item.is_buffer],
        "buffer": [item.name for item in parameters if item.is_buffer and item.dtype in FLOATS],
        "layer": layers,
        "module": ["", *layers],
        "argument": [item.name for item in case.arguments if item.shape],
        "dtype": list(FLOATS[:3]),
    }


def _type_of(case: Case, name: str) -> tuple[object, ...]:
    return tuple((item.type.sizes(case.sizes), item.dtype) for item in case.inputs if item.name == name)


def is_layer(op: Op) -> bool:
    return "seed" in OPS[op.kind].attributes or op.attr("form") == "module"


def list_changes(case: Case) -> Iterator[Change]:
    """All changes of a case, in order."""
    yield from case.setup
    for call in case.calls:
        yield from call.changes


def check_changes(case: Case) -> None:
    """Raises CaseError if a change makes no sense."""
    require(not (case.setup and case.contracts), "a case with a setup has no contracts", Reason.CONTRACTED)
    lasting = any(not KINDS[one.kind].of_call for one in list_changes(case) if one.kind in KINDS)
    require(
        not (lasting and dict(case.settings).get("freezing")), "freezing makes constants of what changes", Reason.FROZEN
    )
    changed = _begin(case)
    for change in list_changes(case):
        changed.apply(change)


def _begin(case: Case) -> _Changed:
    return _Changed(case, list_written(case), frozen={item.name for item in case.inputs if not item.requires_grad})


def keep_changes(case: Case) -> Case:
    """The case without changes that make no sense."""
    changed = _begin(case)
    return _filter_changes(case, lambda change: accepts(changed.apply, change))


def without_changes(case: Case, kind: str) -> Case:
    """The case without changes of this kind. For a hook, also without removals of hooks."""
    gone = {kind, "unhooked"} if KINDS[kind].is_hook else {kind}
    return _filter_changes(case, lambda change: change.kind not in gone)


def _filter_changes(case: Case, keep: Callable[[Change], bool]) -> Case:
    setup = tuple(filter(keep, case.setup))  # before those of calls, as they are made
    calls = tuple(replace(call, changes=tuple(filter(keep, call.changes))) for call in case.calls)
    return replace(case, setup=setup, calls=calls)


def at_state(case: Case, position: int) -> tuple[tuple[Change, ...], dict[str, str]]:
    """The changes that hold at a call, as a setup, and the dtypes of the buffers that were cast."""
    calls = (case.setup, *(call.changes for call in case.calls))[: position + 1]
    before = [change for changes in calls[:-1] for change in changes if not KINDS[change.kind].of_call]
    made = [*before, *calls[-1]]
    return tuple(one for one in made if one.kind != "cast"), {one.of: one.to for one in made if one.kind == "cast"}


class ChangeText:
    """The text of changes, in the order of a case."""

    def __init__(self, case: Case) -> None:
        self._case, self._live, self._made = case, list[str](), 0
        self._keeps = any(change.kind == "unhooked" for change in list_changes(case))

    def emit(self, change: Change) -> str:
        row, case = KINDS[change.kind], self._case
        if row.target == "argument":
            of = f"given[{[item.name for item in case.arguments].index(change.of)}]"
        else:
            of = f"module.{change.of}" if change.of else "module"
        kinds = {op.name: op.kind for op in case.ops}
        is_tuple = kinds[change.of] == "multihead_attention" if change.of in kinds else len(case.returns) > 1
        to = f"torch.{change.to}" if row.to == "dtype" else f"module.{change.to}"
        text = (row.several if row.several and is_tuple else row.text).format(
            of=of, to=to, axis=change.axis, hook=self._live.pop() if change.kind == "unhooked" else ""
        )
        if not (row.is_hook and self._keeps):
            return text
        self._made += 1
        self._live.append(f"hook{self._made}")
        return f"{self._live[-1]} = {text}"
