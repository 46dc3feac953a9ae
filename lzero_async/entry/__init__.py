"""What a user calls."""
from .train_unizero_segment_async import train_unizero_segment_async

__all__ = ['train_unizero_segment_async']
