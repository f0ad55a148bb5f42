"""The steady state: when a process reaches one, and how fast each environment is from then on."""
