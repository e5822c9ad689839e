"""The choice of an execution for speed: rules of thumb, trial rounds and a calibration."""
