"""Space-time diagrams: from records and frames to text, SVG and ShiViz logs."""
