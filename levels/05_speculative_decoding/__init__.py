"""What probably comes next?"""
