"""The process in which libFuzzer runs: it draws cases by the coverage of earlier ones and judges them."""
