"""The processes of a run: which one this is, how they find each other, what each is for, how they train one model."""
