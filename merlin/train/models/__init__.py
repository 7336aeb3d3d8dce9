"""The models that come with Merlin, and what a model of your own has to offer: `merlin.train.models.base`."""
