"""What a user calls."""
from .run import run_training
from .train_unizero_segment_async import train_unizero_segment_async

__all__ = ['run_training', 'train_unizero_segment_async']
