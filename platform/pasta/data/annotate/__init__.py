"""Annotating instruction data: annotators behind one interface, a validator behind them all, shards on disk."""
