"""The modules below `torch.tpu`: this folder is the path of that package."""
