"""F.scaled_dot_product_attention on its FLASH_ATTENTION backend."""

from torch.nn.attention import SDPBackend

from fuzz.check.attention.sdpa import backend

SUBJECT = backend("sdpa_flash", SDPBackend.FLASH_ATTENTION)
