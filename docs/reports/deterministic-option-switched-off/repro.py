"""[Inductor][CPU] softmax with torch._inductor.config.deterministic=True: changes torch._inductor.config.deterministic from True to its default

A plain run of inductor_options does not show this: attnfuzz's workers make further, packed and paged calls too, in memory
that is filled and fenced, compare the state of the process, and know element by element what rounding explains. Run it in a
checkout of attnfuzz. Give another interpreter to test its torch. Exits with 0 without the bug, 1 with it, 125 if it can't
tell.
"""
import os, sys

CASE = """
case_format: 1
expect:
  status: pass
  subject: inductor_options
  device: cpu
dims: {S: 4, D: 8}
mode: inference
inputs:
  x: {shape: [S, D], dtype: float32, values: {kind: normal, seed: 0}}
ops:
- {name: out, op: softmax, args: [x]}
returns: [out]
settings: {deterministic: true}
"""

sys.path.insert(0, os.getcwd())
try:
    from fuzz.replay import judge_and_print
except Exception as error:
    print(f"can't run here: {error!r}; run it in a checkout of attnfuzz", file=sys.stderr)
    sys.exit(125)

if __name__ == "__main__":
    sys.exit(judge_and_print(CASE, "inductor_options", "cpu", *sys.argv[1:2]))
