"""A package: with its last test its service ends (pytest's scope package)."""
