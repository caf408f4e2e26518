"""Has cases judged: the questions, and the workers that answer them."""
