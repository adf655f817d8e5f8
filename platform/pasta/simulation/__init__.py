"""Simulates a service: latencies, and the number of replicas that a load needs, from the cost of an engine step.

A discrete-event simulation whose events are engine steps. The interpreter that drives the engine also decides here what
an answer feeds in each step. Needs neither torch nor Ray.
"""
