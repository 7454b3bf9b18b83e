"""Which boards, sensors and loads can be simulated behind NVIDIA's own binding?"""
