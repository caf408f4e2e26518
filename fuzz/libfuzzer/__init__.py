"""The worker in which libFuzzer runs: it draws cases by the coverage of earlier cases, and judges them."""
