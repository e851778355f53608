"""Who reserves what they never use?"""
