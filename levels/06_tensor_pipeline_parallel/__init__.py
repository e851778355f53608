"""What if the model outgrows one device?"""
