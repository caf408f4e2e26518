"""F.scaled_dot_product_attention on its EFFICIENT_ATTENTION backend."""

from torch.nn.attention import SDPBackend

from fuzz.check.attention.sdpa import backend

SUBJECT = backend("sdpa_efficient", SDPBackend.EFFICIENT_ATTENTION)
