"""Making templates: from recipes, images, archives, Dockerfiles and snapshots."""
