"""Where rows come from: files, folders, spools of pushed rows, and how they are read."""
