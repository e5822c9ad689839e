"""Update rules of local steps, and schedules of hyper-parameters."""
