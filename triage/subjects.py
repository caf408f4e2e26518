"""Control experiments, as subjects a worker runs: `triage.subjects:no_pattern_matcher`. Standard library and torch only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def no_pattern_matcher(module: nn.Module) -> Callable[..., Any]:
    """Inductor without rewrites of patterns in its graphs."""
    return torch.compile(module, options={"pattern_matcher": False}, dynamic=False)


def no_pattern_matcher_dynamic(module: nn.Module) -> Callable[..., Any]:
    """The same with every size symbolic."""
    return torch.compile(module, options={"pattern_matcher": False}, dynamic=True)


def emulated_casts(module: nn.Module) -> Callable[..., Any]:
    """Inductor that rounds to low precision wherever eager does, which it elides by design."""
    return torch.compile(module, options={"emulate_precision_casts": True}, dynamic=False)


def emulated_casts_dynamic(module: nn.Module) -> Callable[..., Any]:
    """The same with every size symbolic."""
    return torch.compile(module, options={"emulate_precision_casts": True}, dynamic=True)
