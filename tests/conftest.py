"""One torch thread per test worker: the tensors are tiny and the workers many."""

import torch

torch.set_num_threads(1)
