"""Any `torch.nn.Module` and its loader: parameters in flat buffers, data split by rank."""
