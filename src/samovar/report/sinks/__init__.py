"""Receivers of a run's figures. Modules of services need their packages, and are imported when they are asked for."""
