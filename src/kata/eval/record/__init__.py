"""Recording of demonstrations as LeRobot datasets."""
