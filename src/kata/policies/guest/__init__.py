"""Guests: policies of LeRobot and of its plugin packages, trained by kata as they are.

`config` makes a class of options from LeRobot's, `model` runs LeRobot's policy, `guest_pipeline`
its processors. LeRobot is imported by `library` alone, and only when a guest is asked for.
"""
