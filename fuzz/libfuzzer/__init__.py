"""The process that hosts libFuzzer: it draws cases by the coverage of earlier ones, and judges them itself."""
