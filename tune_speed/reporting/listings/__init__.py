"""What there is to choose from, for `tune-speed list`.

`listings.listing` lists the entries of a recipe's tables, and maps the items of the source
documents (`inventory.csv`) to them.
"""
