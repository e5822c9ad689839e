"""The commands of `undrift`, one file each; `undrift.cli` puts them together."""
