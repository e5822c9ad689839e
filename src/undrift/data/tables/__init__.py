"""Tables: CSV files and pandas frames as data sets, with preprocessing that belongs to the model.

It needs pandas and scikit-learn (`pip install 'undrift[tables]'`).
"""
