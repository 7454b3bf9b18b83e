"""How is the energy of a call measured, from one window to the estimate?"""
