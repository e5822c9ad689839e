"""Execution of one round: clients with a server or nodes without one, in loops, threads or stacks.

`round.py` and `cohort.py` run methods with a server, `nodes.py` runs methods without one. All of
them run the `Loop` of `local.py` on the minibatches of `tables.py` and `batches.py`.
"""
