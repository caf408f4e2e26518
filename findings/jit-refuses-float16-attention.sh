#!/bin/sh
# On the CPU, jax.nn.dot_product_attention takes float16, and under jax.jit it raises.
#
# Versions: jax 0.10.2.
#
# The function asks for the product F16_F16_F32, which the CPU lacks, and catches the exception to ask for the default.
# Under jax.jit, tracing raises nothing; the product is refused when the whole is lowered, after the `try` has ended. So
# code that was tried out in float16 fails as soon as somebody adds jax.jit.
#
# A guess: jax.jit of a function runs if the function does.
#
# Seen: the dtype of the inputs, then the function, then the same under jax.jit
#     bfloat16 bfloat16 bfloat16
#     float16 float16 ValueError
#     float32 float32 float32
#
# Installs jax in a temporary folder; PYTHON=/path/to/python uses an interpreter that has it. Exits with 1 if the
# behaviour is another.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet jax==0.10.2
    PYTHON=$folder/venv/bin/python
fi
cat > "$folder/call.py" <<'END'
import jax
import jax.numpy as jnp


def run(attend, dtype):
    x = jnp.ones((1, 3, 1, 4), dtype)  # [batch, length, heads, head_dim]
    try:
        return attend(x, x, x).dtype.name
    except ValueError as error:
        return type(error).__name__


plain = jax.nn.dot_product_attention
for dtype in ("bfloat16", "float16", "float32"):
    print(dtype, run(plain, dtype), run(jax.jit(plain), dtype))
END
JAX_PLATFORMS=cpu "$PYTHON" "$folder/call.py" 2> "$folder/log" | tee "$folder/seen"
printf 'bfloat16 bfloat16 bfloat16\nfloat16 float16 ValueError\nfloat32 float32 float32\n' | diff - "$folder/seen"
