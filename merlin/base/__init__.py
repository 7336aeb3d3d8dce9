"""The ground floor: files, locks, processes, text, documents. It knows nothing of studies."""
