"""Ways to answer a prompt: the engine's methods, Skeleton-of-Thought, and endpoints."""
