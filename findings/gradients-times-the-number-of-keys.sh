#!/bin/sh
# On the CPU, scaled_dot_product_attention multiplies the gradients of a fully masked row by the number of its keys, if
# the mask is additive and holds the dtype's lowest number.
#
# Versions: torch 2.13.0; torch 2.15.0 does the same.
#
# Batches that are padded on the left have rows of padding, whose additive mask is the lowest number at every key. The
# output of such a row is the mean of the values, as of a written-out softmax. Its gradients are those of the MATH
# backend times the number of keys, without a warning. Rows of -inf give 0 on both backends. A loss
# that ignores rows of padding does not notice; a loss that averages over all rows, or a later layer that mixes rows,
# does.
#
# A guess: the gradients are those of the mean, as on the MATH backend.
#
# Seen: the gradient of the first value on the default backend over that on MATH, for 4, 6 and 16 keys
#     4 4.0
#     6 6.0
#     16 16.0
#
# Installs torch in a temporary folder; PYTHON=/path/to/python uses an interpreter that has it. Exits with 1 if the
# behaviour is another.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet torch==2.13.0
    PYTHON=$folder/venv/bin/python
fi
cat > "$folder/rows.py" <<'END'
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def gradient(keys, backends):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 1, keys, 8), torch.randn(1, 1, keys, 8)
    v.requires_grad_()
    mask = torch.full((1, keys), torch.finfo(torch.float32).min)
    with sdpa_kernel(backends):
        functional.scaled_dot_product_attention(q.requires_grad_(), k, v, attn_mask=mask).sum().backward()
    return v.grad.flatten()[0].item()


for keys in (4, 6, 16):
    default = gradient(keys, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
    print(keys, round(default / gradient(keys, [SDPBackend.MATH]), 3))
END
"$PYTHON" "$folder/rows.py" 2> "$folder/log" | tee "$folder/seen"
printf '4 4.0\n6 6.0\n16 16.0\n' | diff - "$folder/seen"
