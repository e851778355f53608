"""Who computed this before?"""
