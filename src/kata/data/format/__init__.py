"""LeRobot's dataset formats v2.0, v2.1 and v3.0 as they are on disk."""
