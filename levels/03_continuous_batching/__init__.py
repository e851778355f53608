"""Who waits for whom?"""
