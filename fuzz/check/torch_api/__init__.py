"""Private interfaces of torch: one module each, with a clear message where a torch lacks a name."""
