"""What is said of a plan that is wrong by itself."""

REPORT = "this is the plan's mistake and not yours: please report it with the schedule"
"""To do about what no user wrote."""
