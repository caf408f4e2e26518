"""Plainer ways to run a model of OpenVINO, which tell whose bug a failure is."""

from fuzz.compilers.interface import Variation


def _vary(name: str, words: str, stage: str, part: str = "", **keywords: object) -> Variation:
    return Variation(f"openvino_{name}", words, keywords, "openvino", stage, part)


OF_DEVICE = (
    _vary("snippets_off", "SNIPPETS_MODE=DISABLE", "graph_optimisation", "snippets", SNIPPETS_MODE="DISABLE"),
    _vary("uncached", "CPU_RUNTIME_CACHE_CAPACITY=0", "runtime", "runtime_cache", CPU_RUNTIME_CACHE_CAPACITY="0"),
    _vary("accurate", "EXECUTION_MODE_HINT=ACCURACY", "runtime", "precision", EXECUTION_MODE_HINT="ACCURACY"),
)
OF_MODEL = (
    _vary("with_sizes", "fixed sizes", "graph_optimisation", "dynamic_sizes", sized=True),
    _vary("evaluated", "Model.evaluate, which uses no device", "runtime", evaluates=True),
)
