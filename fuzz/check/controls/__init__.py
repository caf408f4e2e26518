"""Control experiments: a subject with one thing about how it compiles or runs changed, or watched."""

from fuzz.check.controls.table import CONTROLS, ControlError, apply_controls

__all__ = ["CONTROLS", "ControlError", "apply_controls"]
