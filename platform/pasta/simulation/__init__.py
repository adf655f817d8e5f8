"""How long a service's answers take, and how many machines it needs, from what a step of its engine costs.

A discrete-event simulation: its events are engine steps, and what an answer feeds in each of them is decided by
the very interpreter that drives the engine. Needs neither torch nor Ray.
"""
