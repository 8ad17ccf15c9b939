"""A project as a package: modules that import each other, and configurations beside them."""
