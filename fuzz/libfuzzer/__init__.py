"""The process that hosts libFuzzer: it draws cases by what the compiler did with earlier ones, and judges them itself."""
