"""The experiments of the project: data sets, networks, their training, and what the paper's tables become here.

`python -m reproduction` lists them. Outside the package: needs `pip install '.[reproduction]'` in this folder.
"""
