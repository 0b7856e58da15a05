"""Cost models of hardware: what an attention takes on a device."""
