"""The tables and figures of the documents: their experiments, numbers and claims, and ours beside.

`<document>/<item>.toml` is one table or figure. `docs/papers.md` describes the files.
"""
