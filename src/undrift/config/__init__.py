"""An experiment as typed data: its sections, methods, sweep, defaults and schema."""
