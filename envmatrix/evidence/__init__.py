"""Models of a trial's record and evidence (docs/record.md), and checks of that evidence."""
