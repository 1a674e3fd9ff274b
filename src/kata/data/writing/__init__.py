"""Writing of LeRobot v3.0 datasets."""
