"""What torchrun asks of torch.utils."""
