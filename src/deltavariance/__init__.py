"""How much could a trained model's answer have been different, had the training data been different?"""
