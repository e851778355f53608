"""Who is listening?"""
