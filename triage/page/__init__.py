"""A campaign as one HTML page."""
