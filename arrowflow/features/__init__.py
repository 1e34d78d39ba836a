"""Statistics of columns, fitted on the data, and the expressions that use them."""
