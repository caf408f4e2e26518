"""Findings turned into reports a maintainer can use."""
