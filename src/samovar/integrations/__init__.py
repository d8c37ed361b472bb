"""Samovar inside other frameworks' training loops: they load data and keep books, and ranks share by a strategy.

Each module needs its framework; `pip install 'samovar[frameworks]'` brings all of them.
"""
