"""Wrong autocasts in the graphs that Dynamo captures; eager enters them otherwise."""

import functools
from typing import Any


def keep_autocast(enter: Any) -> Any:
    """An autocast that is off leaves the autocast around it on."""

    def planted(device: Any, dtype: Any, enabled: bool, *rest: Any) -> Any:
        import torch

        return enter(device, dtype, enabled or torch.is_autocast_enabled(device), *rest)

    return functools.wraps(enter)(planted)


def ignore_inner_dtype(enter: Any) -> Any:
    """An autocast within another casts to the dtype of the one around it."""

    def planted(device: Any, dtype: Any, *rest: Any) -> Any:
        import torch

        around = torch.get_autocast_dtype(device)
        is_inner = torch.is_autocast_enabled(device) and dtype is not None
        return enter(device, around if is_inner else dtype, *rest)

    return functools.wraps(enter)(planted)
