"""What implementations of attention do where papers leave it open: questions, and the experiments that answer them."""
