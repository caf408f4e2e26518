"""Relations between two calls of an attention function, as code that a maintainer can read and run."""

_GROUP = "group = q.shape[1] // k.shape[1]"
_ROWS = "rows = torch.arange(q.shape[2])"
_KEYS = "keys = torch.arange(k.shape[2])"
_AS_BEFORE = "f(q, k, v, **o)"
_END = 'end = o.get("causal") == "bottom_right"  # places are counted from the last key'

SIDES = {
    "heads permuted": f"""
{_GROUP}
for keys in torch.arange(k.shape[1]).flip(0), torch.arange(k.shape[1]).roll(1):
    heads = (keys[:, None] * group + torch.arange(group).flip(0)).flatten()
    yield f(q[:, heads], k[:, keys], v[:, keys], **part(o, 1, heads)), {_AS_BEFORE}[:, heads]
""",
    "a bias of -inf for the mask": f"""
bias = o.get("bias", q.new_zeros(()))
bias = torch.where(o["mask"], bias, -torch.inf).to(bias.dtype)
o_changed = {{n: x for n, x in o.items() if n != "mask"}} | {{"bias": bias}}
yield f(q, k, v, **o_changed), {_AS_BEFORE}
""",
    "a mask for causal and window": f"""
o_changed = {{n: x for n, x in o.items() if n not in ("causal", "window")}} | {{"mask": kept(q, k, **o)}}
yield f(q, k, v, **o_changed), {_AS_BEFORE}
""",
    "mask and bias expanded": f"""
shape = (*q.shape[:3], k.shape[2])
o_changed = o | {{n: o[n].expand(shape).contiguous() for n in ("mask", "bias") if n in o}}
yield f(q, k, v, **o_changed), {_AS_BEFORE}
""",
    "q * 4^n and scale / 4^n": f"""
for n in 1, 2:
    yield f(q * 4**n, k, v, **o | {{"scale": o["scale"] / 4**n}}), {_AS_BEFORE}
""",
    "-q and -scale": f"""
yield f(-q, k, v, **o | {{"scale": -o["scale"]}}), {_AS_BEFORE}
""",
    "-v": f"""
yield f(q, k, -v, **o), -{_AS_BEFORE}
""",
    "keys repeated for each query head": f"""
{_GROUP}
yield f(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), **o), {_AS_BEFORE}
""",
    "one batch alone": f"""
for batch in torch.arange(q.shape[0]).split(1):
    yield f(q[batch], k[batch], v[batch], **part(o, 0, batch)), {_AS_BEFORE}[batch]
""",
    "a bias for ALiBi": f"""
bias = o.get("bias", 0.0) - o["alibi"][:, None, None] * relative(q, k, o.get("causal")).abs()
o_changed = {{n: x for n, x in o.items() if n != "alibi"}} | {{"bias": bias.float()[None]}}
yield f(q, k, v, **o_changed), {_AS_BEFORE}
""",
    "some queries alone": f"""
{_ROWS}
{_END}
for cut in sorted({{1, len(rows) // 2, len(rows) - 1}} - {{0}}):
    some = rows[cut:] if end else rows[:cut]
    yield f(q[:, :, some], k, v, **part(o, 2, some)), {_AS_BEFORE}[:, :, some]
""",
    "features of 0 appended": f"""
for more in 1, 3, 8, 16:
    q1, k1, v1 = (nn.functional.pad(x, (0, more)) for x in (q, k, v))
    if q.shape[3] == v.shape[3]:
        yield f(q1, k1, v1, **o), nn.functional.pad({_AS_BEFORE}, (0, more))
    else:
        yield f(q1, k1, v, **o), {_AS_BEFORE}
""",
    "keys permuted": f"""
{_KEYS}
for order in keys.flip(0), keys.roll(1):
    yield f(q, k[:, :, order], v[:, :, order], **part(o, 3, order)), {_AS_BEFORE}
""",
    "keys masked or removed": f"""
{_KEYS}
for cut in sorted({{1, len(keys) // 2, len(keys) - 1}} - {{0}}):
    keep = (keys < cut).to(q.device).reshape(1, 1, 1, -1)
    keep = keep & o["mask"] if "mask" in o else keep
    yield f(q, k[:, :, :cut], v[:, :, :cut], **part(o, 3, keys[:cut])), f(q, k, v, **o | {{"mask": keep}})
""",
    "masked keys appended": f"""
{_KEYS}
for more in 1, 5, 64:
    wide = torch.cat([keys, torch.arange(more) % len(keys)])
    keep = (torch.arange(len(wide)) < len(keys)).to(q.device).reshape(1, 1, 1, -1)
    o_changed = part(o, 3, wide)
    o_changed["mask"] = keep & o_changed["mask"] if "mask" in o else keep
    tall = torch.cat([v, torch.full_like(v[:, :, wide[len(keys):]], 1000.0)], 2)
    yield f(q, k[:, :, wide], tall, **o_changed), {_AS_BEFORE}
""",
    "queries and keys cut off under causality": f"""
{_ROWS}
{_KEYS}
{_END}
least = min(len(rows), len(keys))
for cut in sorted({{1, least // 2, least - 1}} - {{0}}):
    i, j = (rows[:-cut], keys[:-cut]) if end else (rows[:cut], keys[:cut])
    yield f(q[:, :, i], k[:, :, j], v[:, :, j], **part(part(o, 2, i), 3, j)), {_AS_BEFORE}[:, :, i]
""",
    "features of q and k turned alike": f"""
for order in torch.arange(q.shape[3]).flip(0), torch.arange(q.shape[3]).roll(1):
    signs = ((-1.0) ** order).to(q)
    yield f(q[..., order] * signs, k[..., order] * signs, v, **o), {_AS_BEFORE}
""",
    "sinks as one more key": f"""
shape = (*q.shape[:3], k.shape[2])
column = o["sinks"].float()[:, None, None].expand(*shape[:3], 1)
bias = o["bias"].float().expand(shape) if "bias" in o else column.new_zeros(shape)
o_changed = {{n: x for n, x in o.items() if n != "sinks"}} | {{"bias": torch.cat([bias, column], -1)}}
if "mask" in o:
    o_changed["mask"] = nn.functional.pad(o["mask"].expand(shape), (0, 1), value=True)
k1, v1 = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
yield f(q, k1, v1, **o_changed), {_AS_BEFORE}
""",
    "v = 1 gives 1": """
out = f(q, k, torch.ones_like(v), **o)
yield out, torch.ones_like(out)
""",
    "between the smallest and the largest v": f"""
{_GROUP}
low, high = (x.repeat_interleave(group, 1).double() for x in (v.amin(2, keepdim=True), v.amax(2, keepdim=True)))
if "sinks" in o:
    low, high = low.clamp(max=0), high.clamp(min=0)
out = {_AS_BEFORE}
yield out, out.clamp(low, high)
""",
}
"""By name, the body of a generator of pairs that are equal for every attention `f(q, k, v, **o)`: the result with
changed arguments, and what it must be. A worker draws one such change; these are a few that stand for all."""
