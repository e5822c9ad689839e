"""What experiments leave behind: records, trials, metrics, exports and the names of files."""
