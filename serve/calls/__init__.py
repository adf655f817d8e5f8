"""How deployments find and call each other's replicas."""
