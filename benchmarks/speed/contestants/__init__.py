"""One module for each contestant, run in its own process by its own environment's Python.

None of them but `undrift` may import undrift: a peer's environment has only the peer.
"""
