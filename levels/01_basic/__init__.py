"""What is inference?"""
