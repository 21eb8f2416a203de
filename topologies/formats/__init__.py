"""Reader of Orderbed's YAML files: schema, units, positions of errors, reference pages."""
