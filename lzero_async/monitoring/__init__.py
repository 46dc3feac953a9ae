"""What a run tells while it goes: TensorBoard curves, async_summary.json, the terminal."""
