"""Figures that only the charts of the page show."""
