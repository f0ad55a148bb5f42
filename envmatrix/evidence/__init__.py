"""What a trial's process says of itself (docs/record.md), and the claims that are held against it."""
