"""Which boards, sensors and loads does the simulated NVML have?"""
