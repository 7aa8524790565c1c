"""The paper's tables as data: results, published values, and the reports that join them."""
