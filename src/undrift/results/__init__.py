"""This package defines what experiments leave behind: records, trials, metrics and exports."""
