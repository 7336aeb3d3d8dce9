"""The dashboard: pages of studies for a browser, and metrics for Prometheus. It draws what `views/` knows."""
