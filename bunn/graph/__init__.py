"""What a graph alone determines; :class:`bunn.Laplacian` holds it all."""
