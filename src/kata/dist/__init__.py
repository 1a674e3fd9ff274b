"""Distributed training: rank info, rendezvous, collectives, and engines that sum gradients."""
