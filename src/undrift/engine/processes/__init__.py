"""The processes of a run: how they start, meet, send messages and fail together."""
