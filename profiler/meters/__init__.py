"""How long does a call take, how much memory and how much energy does it need?"""
