"""What CorrectiveFW keeps between its steps."""
