"""How config and tensors of a checkpoint become a spec, fact by fact."""
