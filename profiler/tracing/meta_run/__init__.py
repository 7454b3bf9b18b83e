"""What does one run of a module on the meta device, without data, dispatch and keep alive?"""
