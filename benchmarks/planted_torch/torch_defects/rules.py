"""Wrong rules of an autograd.Function, in the backward pass that Dynamo captured; a wrong torch.func.functionalize."""

import functools
from typing import Any


def forget_clips(apply: Any) -> Any:
    """Gradients are not clipped."""

    def planted(self: Any, forward: Any, backward: Any, *args: Any, **options: Any) -> Any:
        for node in [node for node in backward.graph.nodes if node.target == "clamp"]:
            node.replace_all_uses_with(node.args[0])
            backward.graph.erase_node(node)
        return apply(self, forward, backward, *args, **options)

    return functools.wraps(apply)(planted)


def swap_slots(apply: Any) -> Any:
    """The first argument has the gradient of the last, if both have one shape."""

    def planted(self: Any, forward: Any, backward: Any, *args: Any, **options: Any) -> Any:
        output = backward.graph.output_node()
        found = output.args[0]
        shapes = [getattr(value, "shape", None) for value in args]
        if len(found) == len(args) > 1 and shapes[0] == shapes[-1]:
            output.args = ((found[-1], *found[1:-1], found[0]),)
        return apply(self, forward, backward, *args, **options)

    return functools.wraps(apply)(planted)


def replay_no_views(unwrap: Any) -> Any:
    """A result of functionalize lacks the writes through its views."""

    def planted(value: Any, **options: Any) -> Any:
        from unittest import mock

        with mock.patch("torch._sync"):
            return unwrap(value, **options)

    return functools.wraps(unwrap)(planted)
