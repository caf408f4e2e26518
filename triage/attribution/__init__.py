"""Who is at fault in a finding, by which mistake, and what it takes: found by experiments."""
