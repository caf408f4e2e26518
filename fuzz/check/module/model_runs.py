"""The ways in which people run a released model, in stable words."""

from dataclasses import dataclass


class ModelError(Exception):
    """A model can't be built, loaded or recorded; one line says why."""


class FactoryMissingError(ModelError):
    """What makes it can't be imported here."""


class NoCacheError(ModelError):
    """A model has run and leaves no cache: other inputs change nothing."""


@dataclass(frozen=True)
class ModelRun:
    """One way to run a model. `str` and `ModelRun.parse` are inverse to each other.

    training: in training mode, with the rates of dropout of the configuration
    padding: the side on which shorter rows are filled, "left" or "right"; "" if all rows are full
    batch: how many rows
    step: one new token with a cache of those before; else all tokens at once
    """

    training: bool = False
    padding: str = ""
    batch: int = 3
    step: bool = False

    def __str__(self) -> str:
        words = (
            "training" if self.training else "inference",
            f"{self.padding} padding" if self.padding else "",
            "" if self.batch == ModelRun.batch else f"batch {self.batch}",
            "step with a cache" if self.step else "",
        )
        return ", ".join(filter(None, words))

    @staticmethod
    def parse(text: str) -> "ModelRun":
        """The run of that name. Raises `ModelError` if there is none."""
        run = next((run for run in _RUNS if str(run) == text), None)
        if run is None:
            raise ModelError(f"no run {text!r}; some are: {'; '.join(map(str, _RUNS[:3]))}")
        return run


USUAL = ModelRun(padding="right", batch=2)
"""The run of a model that is named without one."""

_RUNS = (
    ModelRun(padding="left"),
    ModelRun(training=True, padding="left"),
    ModelRun(padding="left", step=True),
    ModelRun(padding="right"),
    ModelRun(training=True, padding="right"),
    ModelRun(),
    ModelRun(training=True),
    ModelRun(step=True),
    ModelRun(batch=1),
    ModelRun(training=True, batch=1),
    ModelRun(batch=1, step=True),
    USUAL,
)


def choose_runs(*, masked: bool, steps: bool) -> list[ModelRun]:
    """The runs that apply to a model, the most telling first: padding and training are where most bugs were.

    masked: it takes a mask, so rows can be padded
    steps: it can go on from a cache
    """
    return [run for run in _RUNS[:-1] if (masked or not run.padding) and (steps or not run.step)]
