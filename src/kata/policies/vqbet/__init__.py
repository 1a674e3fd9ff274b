"""VQ-BeT: behaviour transformer over vector-quantised action chunks."""
