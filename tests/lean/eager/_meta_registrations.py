"""None: what operators do with tensors without data is asked by the compiler alone; to import it takes long."""

from torch._prims import rng_prims  # noqa: F401 - torch.Generator needs it
