"""What implementations of attention do where papers leave it open: questions, and the experiments that answer them."""

import os

# Before anything imports triton, as its functions are interpreted, or not, from then on.
os.environ.setdefault("TRITON_INTERPRET", "1")
