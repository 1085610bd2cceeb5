// Begins: listeners first, so that the page works while the server is still loading.

listenToForm();
listenToTokens();
listenToFilters();
showServer().catch((error) => showStatus("unreachable", error.message));
look();
