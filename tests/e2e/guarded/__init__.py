"""A service with keys, deadlines and a small budget, and its ways in without Ray Serve's own proxy."""
