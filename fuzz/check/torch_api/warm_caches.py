"""torch's caches of compiled programs, in directories of this process, for cases that compile like a second process.

Such a case is compiled and run, to fill the caches. Then torch forgets its programs, the directories are cleared, and
`torch.compiler.load_cache_artifacts` loads the artifacts of this case and of recent cases, as another process would.
The second compilation of the case takes its code from the caches.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch._functorch import config as functorch
from torch._inductor import config as inductor

from fuzz.check.torch_api.torch_internals import intercept, require
from fuzz.protocol import CoverageItem, CoverageKind

_KEPT = 8
"""The number of cases whose artifacts are kept."""
_CACHES = {
    "fxgraph": ("torch._inductor.codecache", "FxGraphCache._get_tmp_dir"),
    "aotautograd": ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache._get_tmp_dir"),
}
"""The functions that return the directories."""
_homes: dict[str, Path] = {}
_artifacts: dict[str, list[bytes]] = {}


@contextmanager
def share(name: str) -> Iterator[None]:
    """While entered, programs share caches with all that this process has compiled under this name."""
    if name not in _homes:
        _homes[name] = Path(tempfile.mkdtemp(dir=require("torch._inductor.runtime.cache_dir_utils", "cache_dir")()))
    with ExitStack() as stack:
        stack.enter_context(inductor.patch(fx_graph_cache=True))
        stack.enter_context(functorch.patch(enable_autograd_cache=True))
        for part, place in _CACHES.items():
            stack.enter_context(intercept(*place, lambda *_, home=str(_homes[name] / part): home))
        yield


def refill(name: str, compile_and_run: Callable[[], object]) -> None:
    """Compile and run, then forget what is compiled, and fill the empty caches of this name from artifacts."""
    require("torch.compiler._cache", "CacheArtifactManager").clear()  # `saved` are those made from now on
    compile_and_run()
    saved = torch.compiler.save_cache_artifacts()
    torch._dynamo.reset()
    require("torch._inductor.utils", "clear_caches")()
    if saved is None:
        return
    shutil.rmtree(_homes[name])
    _artifacts[name] = [*_artifacts.get(name, [])[1 - _KEPT :], saved[0]]
    for artifacts in _artifacts[name]:
        torch.compiler.load_cache_artifacts(artifacts)


def count_answers() -> Counter[str]:
    """How often the caches had an answer or none so far, by the names of torch's counters."""
    counters = require("torch._dynamo.utils", "counters")
    return Counter(
        {key: n for part in ("inductor", "aot_autograd") for key, n in counters[part].items() if "cache" in key}
    )


def list_answers(before: Counter[str]) -> set[CoverageItem]:
    return {CoverageItem(CoverageKind.CACHE, name) for name in count_answers() - before}
