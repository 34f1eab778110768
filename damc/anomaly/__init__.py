"""Anomaly detection: the detector, its scores and its files."""
