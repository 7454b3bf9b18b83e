"""What are the equations of parts that one architecture has, or its relatives?"""
