"""What if one engine is not enough?"""
