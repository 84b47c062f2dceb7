"""What makes the documentation's site: pages from the registry and the settings, and diagrams. No page stands here."""
