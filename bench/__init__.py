"""The one benchmark that runs inside every environment: stdlib and torch only (Python 3.9+, torch 1.13+)."""
